"""Stable-Baselines3: PPO on CartPole."""
# By hand: 13 in each step: six arrays to the GPU, two checks of the distribution, the divergence to the CPU,
# four losses and fractions read.

import _tiny
from stable_baselines3 import PPO

model = PPO(
    "MlpPolicy", "CartPole-v1", n_steps=64, batch_size=32, n_epochs=2, device=_tiny.device(), verbose=0
)
model.learn(total_timesteps=400)
