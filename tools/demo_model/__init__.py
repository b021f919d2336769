"""Makes the demo model: a real, small language model as a glm4_moe checkpoint."""
