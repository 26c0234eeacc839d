"""PPO on a toy: rollouts that read each action, then several epochs of updates, as single-file versions do."""

import torch
import torch.nn as nn
from torch.distributions import Categorical

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
num_iterations, num_steps, update_epochs, num_minibatches = 3, 24, 2, 4


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
        self.actor = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x), validate_args=False)
        if action is None:
            action = probs.sample()  # waits[torch<2.5]: 48 each rollout
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


def env_step(action):
    return torch.randn(1, 4), float(action)


agent = Agent().to(device)  # waits: set-up
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
obs = torch.zeros((num_steps, 1, 4), device=device)
actions = torch.zeros((num_steps, 1), device=device)
logprobs = torch.zeros((num_steps, 1), device=device)
rewards = torch.zeros((num_steps, 1), device=device)
values = torch.zeros((num_steps, 1), device=device)
next_obs = torch.randn(1, 4).to(device)  # waits: set-up

for iteration in range(1, num_iterations + 1):
    for step in range(num_steps):
        obs[step] = next_obs
        with torch.no_grad():
            action, logprob, _, value = agent.get_action_and_value(next_obs)
            values[step] = value.flatten()
        actions[step] = action
        logprobs[step] = logprob
        state, reward = env_step(action.cpu().numpy()[0])  # waits: 24 each rollout
        rewards[step] = reward
        next_obs = state.to(device)  # waits: 24 each rollout

    returns = rewards.flip(0).cumsum(0).flip(0)
    b_obs, b_logprobs = obs.reshape(-1, 4), logprobs.reshape(-1)
    b_actions, b_returns = actions.reshape(-1), returns.reshape(-1)
    b_advantages = b_returns - values.reshape(-1)
    size = num_steps // num_minibatches
    for epoch in range(update_epochs):
        order = torch.randperm(num_steps, device=device)
        for start in range(0, num_steps, size):
            mb = order[start : start + size]
            _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[mb], b_actions[mb])
            ratio = (newlogprob - b_logprobs[mb]).exp()
            pg_loss = torch.max(
                -b_advantages[mb] * ratio, -b_advantages[mb] * torch.clamp(ratio, 0.8, 1.2)
            ).mean()
            loss = pg_loss - 0.01 * entropy.mean() + 0.5 * (newvalue.view(-1) - b_returns[mb]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    print("iteration", iteration, "loss", loss.item())  # waits: 1 each iteration end
