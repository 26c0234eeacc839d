"""The model of `fsdp2_tp.py`: residual blocks of two products."""

from torch import nn


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first = nn.Linear(width, 4 * width)
        self.second = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.second(nn.functional.gelu(self.first(self.norm(x))))


class Model(nn.Module):
    def __init__(self, width: int = 64, words: int = 128):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))

    def init_weights(self):
        for name, parameter in self.named_parameters():
            if "norm" in name:
                nn.init.ones_(parameter)
            else:
                nn.init.trunc_normal_(parameter, std=0.02)
