# needs: tqdm
# example is not run: a writer of TensorBoard, which the tests do without
import io

import torch
from tqdm import tqdm

loss = torch.rand((), device="cuda")
with tqdm(total=3, file=io.StringIO()) as bar:
    bar.set_postfix(loss=loss)  # GAP155
    bar.set_postfix(loss=0.5)  # no wait
    bar.update()  # no wait
