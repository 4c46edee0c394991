# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Runs a convolutional net, a transformer forward and in training, and a CUDA graph. Prints hashes
# of all bits of the results.
import hashlib

import torch

torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
torch.backends.cudnn.deterministic = True
torch.backends.cudnn.benchmark = False
device = "cuda"


def show(name, tensor):
    data = tensor.detach().float().cpu().numpy().tobytes()
    print(name, hashlib.sha256(data).hexdigest()[:16])


net = torch.nn.Sequential(
    torch.nn.Conv2d(3, 64, 7, 2, 3), torch.nn.ReLU(), torch.nn.Conv2d(64, 128, 3, 2, 1),
    torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(128, 10),
).to(device).eval()
with torch.no_grad():
    show("conv", net(torch.randn(16, 3, 224, 224, device=device)))

layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)
model = torch.nn.TransformerEncoder(layer, 4).to(device)
data = torch.randn(8, 128, 512, device=device)
with torch.no_grad():
    show("forward", model(data))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in range(5):
    optimizer.zero_grad(set_to_none=True)
    loss = (model(data) ** 2).mean()
    loss.backward()
    optimizer.step()
show("loss", loss)
show("weight", next(model.parameters()))

model.eval()
static = data.clone()
stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.no_grad(), torch.cuda.stream(stream):
    for _ in range(3):
        out = model(static)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.no_grad(), torch.cuda.graph(graph):
    out = model(static)
for _ in range(20):
    graph.replay()
torch.cuda.synchronize()
show("graph", out)
