"""Stable-Baselines3: PPO on CartPole."""

import _tiny
from stable_baselines3 import PPO

model = PPO(
    "MlpPolicy", "CartPole-v1", n_steps=64, batch_size=32, n_epochs=2, device=_tiny.device(), verbose=0
)
model.learn(total_timesteps=400)
