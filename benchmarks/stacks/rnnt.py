"""Speech: a transducer (RNN-T) with LSTM encoder and predictor and its loss over the whole lattice."""
# By hand: 5 to 6 in each step: three copies, the order of lengths to the GPU in packing and back in padding;
# every fifth step the loss.

import _tiny
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

device = torch.device(_tiny.device())
torch.manual_seed(0)


def transducer_loss(logits, targets, frames, words):
    """The negative log-likelihood, from a lattice of shape (batch, frames, words + 1)."""
    blank, emit = (
        logits[..., 0],
        logits[:, :, :-1].gather(3, targets[:, None, :, None].expand(-1, logits.size(1), -1, 1)),
    )
    emit = emit.squeeze(3)
    rows = []
    for t in range(logits.size(1)):
        row = []
        for u in range(logits.size(2)):
            ways = []
            if t:
                ways.append(rows[t - 1][u] + blank[:, t - 1, u])
            if u:
                ways.append(row[u - 1] + emit[:, t, u - 1])
            first = torch.zeros(logits.size(0), device=logits.device)
            row.append(torch.logsumexp(torch.stack(ways), 0) if ways else first)
        rows.append(row)
    alphas = torch.stack([torch.stack(row, 1) for row in rows], 1)
    batch = torch.arange(logits.size(0), device=logits.device)
    return -(alphas[batch, frames - 1, words] + blank[batch, frames - 1, words]).mean()


class Transducer(nn.Module):
    def __init__(self, words: int = 12):
        super().__init__()
        self.encoder = nn.LSTM(8, 16, batch_first=True, bidirectional=True)
        self.embed = nn.Embedding(words, 16)
        self.predictor = nn.GRU(16, 32, batch_first=True)
        self.joint = nn.Linear(32, words)

    def forward(self, sound, lengths, targets):
        packed = pack_padded_sequence(sound, lengths, batch_first=True, enforce_sorted=False)
        heard, _ = pad_packed_sequence(self.encoder(packed)[0], batch_first=True)
        said, _ = self.predictor(self.embed(nn.functional.pad(targets, (1, 0))))
        return self.joint(torch.tanh(heard[:, :, None] + said[:, None])).log_softmax(-1)


model = Transducer().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(13):
    lengths = torch.randint(5, 9, (4,))
    lengths[0] = 8
    sound, targets = torch.randn(4, 8, 8), torch.randint(1, 12, (4, 3))
    sound, targets = sound.to(device), targets.to(device)
    logits = model(sound, lengths, targets)
    loss = transducer_loss(logits, targets, lengths.to(device), torch.full((4,), 3, device=device))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    if step % 5 == 0:
        print(step, loss.item())
