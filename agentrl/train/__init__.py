"""Training: supervised fine-tuning and GRPO, TRL's trainers with our masks, rollouts and loss."""
