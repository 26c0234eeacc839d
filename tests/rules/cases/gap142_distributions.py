import torch
from torch.distributions import Categorical, Normal

device = "cuda"
mean = torch.zeros(3, device=device)
std = torch.ones(3, device=device)
logits = torch.zeros(2, 4, device=device)
action = torch.zeros(2, dtype=torch.long, device=device)

checked = Normal(mean, std)  # GAP142 x2
checked.log_prob(mean)  # GAP142
policy = Categorical(logits=logits)  # GAP142
policy.log_prob(action)  # GAP142
policy.entropy()  # no wait
checked.rsample()  # no wait
unchecked = Normal(mean, std, validate_args=False)  # no wait
unchecked.log_prob(mean)  # no wait
Normal(torch.zeros(3), torch.ones(3))  # no wait
Categorical(logits=logits, validate_args=False).log_prob(action)  # no wait
