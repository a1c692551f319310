"""Training: supervised fine-tuning and GRPO, TRL's trainers with our masks, rollouts and loss."""

import warnings

# Progress is printed as plain lines; that a notebook lacks progress widgets is no news.
warnings.filterwarnings("ignore", message="IProgress not found")
