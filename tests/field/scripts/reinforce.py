import argparse
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.distributions import Categorical

parser = argparse.ArgumentParser(description="REINFORCE")
parser.add_argument("--gamma", type=float, default=0.99)
parser.add_argument("--seed", type=int, default=543)
parser.add_argument("--episodes", type=int, default=20)
parser.add_argument("--log-interval", type=int, default=10)
args = parser.parse_args()


class Corridor:
    """Walk to the right end within ten moves."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.x, self.t = self.rng.normal() * 0.1, 0
        return self._state()

    def _state(self):
        return np.array([self.x, self.t / 10, np.sin(self.x), np.cos(self.x)])

    def step(self, action):
        self.x += 0.1 if action == 1 else -0.1
        self.t += 1
        return self._state(), float(self.x), self.t >= 10


env = Corridor(args.seed)
torch.manual_seed(args.seed)
device = "cuda"


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(4, 32)
        self.dropout = nn.Dropout(p=0.6)
        self.affine2 = nn.Linear(32, 2)
        self.saved_log_probs = []
        self.rewards = []

    def forward(self, x):
        x = F.relu(self.dropout(self.affine1(x)))
        return F.softmax(self.affine2(x), dim=1)


policy = Policy().to(device)  # waits: set-up
optimizer = optim.Adam(policy.parameters(), lr=1e-2)
eps = np.finfo(np.float32).eps.item()


def select_action(state):
    state = torch.from_numpy(state).float().unsqueeze(0).to(device)  # waits: 10 every step
    probs = policy(state)
    m = Categorical(probs)  # waits: 10 every step
    action = m.sample()  # waits[torch<2.5]: 20 every step
    policy.saved_log_probs.append(m.log_prob(action))  # waits: 10 every step
    return action.item()  # waits: 10 every step


def finish_episode():
    R = 0
    policy_loss = []
    returns = deque()
    for r in policy.rewards[::-1]:
        R = r + args.gamma * R
        returns.appendleft(R)
    returns = torch.tensor(returns, device=device)  # waits: 1 every step
    returns = (returns - returns.mean()) / (returns.std() + eps)
    for log_prob, R in zip(policy.saved_log_probs, returns):
        policy_loss.append(-log_prob * R)
    optimizer.zero_grad()
    policy_loss = torch.cat(policy_loss).sum()
    policy_loss.backward()
    optimizer.step()
    del policy.rewards[:]
    del policy.saved_log_probs[:]


running_reward = 10
for i_episode in range(1, args.episodes + 1):
    state, ep_reward = env.reset(), 0
    done = False
    while not done:
        action = select_action(state)
        state, reward, done = env.step(action)
        policy.rewards.append(reward)
        ep_reward += reward
    running_reward = 0.05 * ep_reward + (1 - 0.05) * running_reward
    finish_episode()
    if i_episode % args.log_interval == 0:
        print(f"Episode {i_episode}\tLast reward: {ep_reward:.2f}\tAverage reward: {running_reward:.2f}")
