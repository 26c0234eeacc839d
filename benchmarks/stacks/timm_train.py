"""timm: its optimizer, schedule, mixup, EMA and scaler around a small convolutional network, as its train.py does."""
# By hand: 2 in each step: the loss, the scaler's overflow flag.

import _tiny
import torch
from timm import create_model, utils
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from torch.utils.data import DataLoader, TensorDataset

device = torch.device(_tiny.device())
torch.manual_seed(0)
model = create_model("resnet10t", num_classes=4).to(device=device, memory_format=torch.channels_last)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
schedule, _ = create_scheduler_v2(optimizer, sched="cosine", num_epochs=2, updates_per_epoch=8)
scaler = utils.NativeScaler(device=device.type)
ema = utils.ModelEmaV3(model, decay=0.99)
mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=4)
criterion = SoftTargetCrossEntropy().to(device)
loader = DataLoader(
    TensorDataset(torch.randn(64, 3, 32, 32), torch.randint(0, 4, (64,))),
    batch_size=8,
    shuffle=True,
    pin_memory=device.type == "cuda",
)
losses = utils.AverageMeter()
updates = 0
for epoch in range(2):
    model.train()
    for step, (images, labels) in enumerate(loader):
        images = images.to(device, non_blocking=True).to(memory_format=torch.channels_last)
        images, soft = mixup(images, labels.to(device, non_blocking=True))
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = criterion(model(images), soft)
        optimizer.zero_grad()
        scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
        ema.update(model, step=updates)
        updates += 1
        losses.update(loss.item(), images.size(0))
        schedule.step_update(num_updates=updates, metric=losses.avg)
    schedule.step(epoch + 1)
    print(epoch, losses.avg)
