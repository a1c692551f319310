"""Removes a folder whatever lies in it: deep trees, odd names, folders without permissions."""

from __future__ import annotations

import os


def remove(top: str) -> None:
    """Remove the folder `top` and its contents; links are unlinked, never followed.

    Nested folders are first moved up into `top`, so that neither recursion nor the length of a
    path grows with the depth of the tree. Raises OSError where something can't be removed; a
    `top` that doesn't exist is fine.
    """
    try:
        os.rmdir(top)
        return
    except FileNotFoundError:
        return
    except OSError:
        pass  # not empty
    os.chmod(top, 0o700)
    n_moved = 0
    while True:
        folders = _unlink_files(top)
        if not folders:
            break
        for folder in folders:
            os.chmod(folder, 0o700)
            for inner in _unlink_files(folder):
                os.chmod(inner, 0o700)  # moving a folder rewrites its own ".." entry
                n_moved = _move_up(inner, top, n_moved)
            os.rmdir(folder)
    os.rmdir(top)


def _unlink_files(folder: str) -> list[str]:
    """Unlink everything in `folder` but its folders, whose paths are returned."""
    folders = []
    with os.scandir(folder) as entries:
        found = list(entries)
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            folders.append(entry.path)
        else:
            os.unlink(entry.path)
    return folders


def _move_up(folder: str, top: str, n_moved: int) -> int:
    # The program may have used the same names; an existing one is skipped.
    while True:
        n_moved += 1
        target = os.path.join(top, f"moved-{n_moved}")
        if not os.path.lexists(target):
            os.rename(folder, target)
            return n_moved
