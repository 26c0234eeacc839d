import argparse

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batchSize", type=int, default=8)
parser.add_argument("--nz", type=int, default=16)
parser.add_argument("--ngf", type=int, default=8)
parser.add_argument("--ndf", type=int, default=8)
parser.add_argument("--niter", type=int, default=2)
parser.add_argument("--lr", type=float, default=0.0002)
parser.add_argument("--manualSeed", type=int, default=1)
opt = parser.parse_args()
print(opt)

torch.manual_seed(opt.manualSeed)
device = torch.device("cuda:0")

dataset = TensorDataset(torch.randn(160, 3, 16, 16), torch.zeros(160, dtype=torch.long))
dataloader = DataLoader(dataset, batch_size=opt.batchSize, shuffle=True, num_workers=0)


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        torch.nn.init.normal_(m.weight, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        torch.nn.init.normal_(m.weight, 1.0, 0.02)
        torch.nn.init.zeros_(m.bias)


netG = nn.Sequential(
    nn.ConvTranspose2d(opt.nz, opt.ngf * 2, 4, 1, 0, bias=False),
    nn.BatchNorm2d(opt.ngf * 2),
    nn.ReLU(True),
    nn.ConvTranspose2d(opt.ngf * 2, opt.ngf, 4, 2, 1, bias=False),
    nn.BatchNorm2d(opt.ngf),
    nn.ReLU(True),
    nn.ConvTranspose2d(opt.ngf, 3, 4, 2, 1, bias=False),
    nn.Tanh(),
)
netG = netG.to(device)  # waits: set-up
netG.apply(weights_init)

netD = nn.Sequential(
    nn.Conv2d(3, opt.ndf, 4, 2, 1, bias=False),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(opt.ndf, opt.ndf * 2, 4, 2, 1, bias=False),
    nn.BatchNorm2d(opt.ndf * 2),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(opt.ndf * 2, 1, 4, 1, 0, bias=False),
    nn.Sigmoid(),
)
netD = netD.to(device)  # waits: set-up
netD.apply(weights_init)

criterion = nn.BCELoss()
fixed_noise = torch.randn(opt.batchSize, opt.nz, 1, 1, device=device)
real_label = 1.0
fake_label = 0.0

optimizerD = optim.Adam(netD.parameters(), lr=opt.lr, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=opt.lr, betas=(0.5, 0.999))

for epoch in range(opt.niter):
    for i, data in enumerate(dataloader, 0):
        # (1) Update D network: maximize log(D(x)) + log(1 - D(G(z)))
        netD.zero_grad()
        real_cpu = data[0].to(device)  # waits: 1 every step
        batch_size = real_cpu.size(0)
        label = torch.full((batch_size,), real_label, dtype=real_cpu.dtype, device=device)
        output = netD(real_cpu).view(-1)
        errD_real = criterion(output, label)
        errD_real.backward()
        D_x = output.mean().item()  # waits: 1 every step

        noise = torch.randn(batch_size, opt.nz, 1, 1, device=device)
        fake = netG(noise)
        label.fill_(fake_label)
        output = netD(fake.detach()).view(-1)
        errD_fake = criterion(output, label)
        errD_fake.backward()
        D_G_z1 = output.mean().item()  # waits: 1 every step
        errD = errD_real + errD_fake
        optimizerD.step()

        # (2) Update G network: maximize log(D(G(z)))
        netG.zero_grad()
        label.fill_(real_label)
        output = netD(fake).view(-1)
        errG = criterion(output, label)
        errG.backward()
        D_G_z2 = output.mean().item()  # waits: 1 every step
        optimizerG.step()

        if i % 5 == 0:
            losses = (errD.item(), errG.item())  # waits: 2 every 5 steps
            print("[%d/%d][%d/%d]" % (epoch, opt.niter, i, len(dataloader)), end=" ")
            print("Loss_D: %.4f Loss_G: %.4f" % losses, end=" ")
            print("D(x): %.4f D(G(z)): %.4f / %.4f" % (D_x, D_G_z1, D_G_z2))

    fake = netG(fixed_noise)
    image = fake.detach().cpu()  # waits: some steps
    print("epoch", epoch, "samples", tuple(image.shape))
