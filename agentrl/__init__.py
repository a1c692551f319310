"""Reinforcement learning for agentic reasoning, at any scale: see README.md for the map of files."""

import os
import warnings

# Read once, when torch loads its thread pool. Threads that spin while they wait make two busy processes several
# times slower; on a quiet machine the setting costs nothing that could be measured. A value of yours is kept.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Progress is printed as plain lines; that a notebook lacks progress widgets is no news.
warnings.filterwarnings("ignore", message="IProgress not found")
