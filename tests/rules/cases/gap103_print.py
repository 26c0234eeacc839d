import io
import logging

import torch

loss = torch.rand((), device="cuda")
matrix = torch.rand(3, 3, device="cuda")
host = torch.rand(())
logger = logging.getLogger("case")
logger.addHandler(logging.StreamHandler(io.StringIO()))
logger.propagate = False
logger.setLevel(logging.INFO)

print(loss)  # GAP103
print("matrix", matrix)  # GAP103
text = f"{loss:.3f}"  # GAP103
text = f"{loss}"  # GAP103
text = "{}".format(loss)  # GAP103
text = str(matrix)  # GAP103
text = repr(loss)  # GAP103
text = "%s" % loss  # GAP103
logger.info("loss %s", loss)  # GAP103
logger.debug("loss %s", loss)  # no wait
print(loss.shape, loss.device, loss.dtype)  # no wait
print(f"{host:.3f}", host)  # no wait
