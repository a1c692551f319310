"""Entry point of the zygote: `python <this folder> SOCKET_FD SCRATCH_BASE`."""

import kernel

kernel.fix_addresses()  # may start the interpreter again, so before the other imports

import serve  # noqa: E402

serve.main()
