"""torchrec: a DLRM over jagged features, one device."""
# By hand: 8 to 9 in each step: four copies of the batch, two indices on the CPU forward and backward; every
# fifth step the loss.

import _tiny
import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.datasets.utils import Batch
from torchrec.models.dlrm import DLRM, DLRMTrain

torch.manual_seed(0)
device = torch.device(_tiny.device())
tables = [
    EmbeddingBagConfig(name=f"t{n}", embedding_dim=8, num_embeddings=50, feature_names=[f"f{n}"])
    for n in range(3)
]
dlrm = DLRM(EmbeddingBagCollection(tables, device=device), 4, [16, 8], [16, 1], dense_device=device)
model = DLRMTrain(dlrm)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(13):
    lengths = torch.randint(1, 4, (3 * 8,))
    features = KeyedJaggedTensor.from_lengths_sync(
        ["f0", "f1", "f2"], torch.randint(0, 50, (int(lengths.sum()),)), lengths
    )
    batch = Batch(torch.randn(8, 4), features, torch.randint(0, 2, (8,))).to(device, non_blocking=True)
    loss, _ = model(batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(step, loss.item())
