"""PPO in one file, in cleanrl's way: rollouts kept on the device, minibatches, clipped losses."""
# By hand: 8 in each step: five tensors indexed with a NumPy array, two checks of the distribution, the clip
# fraction.

import _tiny
import gymnasium as gym
import numpy as np
import torch
from torch import nn, optim
from torch.distributions.categorical import Categorical

device = torch.device(_tiny.device())
num_steps, num_envs, minibatch = 32, 2, 32


def layer(inputs, outputs, std=np.sqrt(2)):
    linear = nn.Linear(inputs, outputs)
    torch.nn.init.orthogonal_(linear.weight, std)
    torch.nn.init.constant_(linear.bias, 0.0)
    return linear


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(layer(4, 64), nn.Tanh(), layer(64, 1, std=1.0))
        self.actor = nn.Sequential(layer(4, 64), nn.Tanh(), layer(64, 2, std=0.01))

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


envs = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(num_envs)])
agent = Agent().to(device)
optimizer = optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
obs = torch.zeros((num_steps, num_envs, 4)).to(device)
actions = torch.zeros((num_steps, num_envs)).to(device)
logprobs, rewards, dones, values = (torch.zeros((num_steps, num_envs)).to(device) for _ in range(4))
next_obs = torch.Tensor(envs.reset(seed=1)[0]).to(device)
next_done = torch.zeros(num_envs).to(device)

for iteration in range(4):
    for step in range(num_steps):
        obs[step] = next_obs
        dones[step] = next_done
        with torch.no_grad():
            action, logprob, _, value = agent.get_action_and_value(next_obs)
            values[step] = value.flatten()
        actions[step] = action
        logprobs[step] = logprob
        next_obs, reward, ended, cut, _ = envs.step(action.cpu().numpy())
        rewards[step] = torch.tensor(reward).to(device).view(-1)
        next_obs, next_done = (
            torch.Tensor(next_obs).to(device),
            torch.Tensor(np.logical_or(ended, cut)).to(device),
        )
    with torch.no_grad():
        next_value = agent.critic(next_obs).reshape(1, -1)
        advantages = torch.zeros_like(rewards).to(device)
        lastgaelam = 0
        for t in reversed(range(num_steps)):
            alive = 1.0 - (next_done if t == num_steps - 1 else dones[t + 1])
            after = next_value if t == num_steps - 1 else values[t + 1]
            delta = rewards[t] + 0.99 * after * alive - values[t]
            advantages[t] = lastgaelam = delta + 0.99 * 0.95 * alive * lastgaelam
        returns = advantages + values
    flat = [tensor.reshape(-1, *tensor.shape[2:]) for tensor in (obs, actions, logprobs, advantages, returns)]
    order = np.arange(num_steps * num_envs)
    clipfracs = []
    for _epoch in range(2):
        np.random.shuffle(order)
        for start in range(0, len(order), minibatch):
            rows = order[start : start + minibatch]
            b_obs, b_actions, b_logprobs, b_advantages, b_returns = (tensor[rows] for tensor in flat)
            _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs, b_actions.long())
            logratio = newlogprob - b_logprobs
            ratio = logratio.exp()
            with torch.no_grad():
                clipfracs += [((ratio - 1.0).abs() > 0.2).float().mean().item()]
            b_advantages = (b_advantages - b_advantages.mean()) / (b_advantages.std() + 1e-8)
            pg_loss = torch.max(-b_advantages * ratio, -b_advantages * torch.clamp(ratio, 0.8, 1.2)).mean()
            v_loss = 0.5 * ((newvalue.view(-1) - b_returns) ** 2).mean()
            loss = pg_loss - 0.01 * entropy.mean() + v_loss * 0.5
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    print(iteration, float(np.mean(clipfracs)), v_loss.item())
envs.close()
