"""Networks that are one chain of layers, and SqueezeNet: AlexNet, VGG, NiN, SqueezeNet, Darknet-19.

Each function makes the network of its paper for inference; dropout is there, and does nothing.
"""

from __future__ import annotations

from tilewright.zoo.layers import INPUT, Builder, Network

CLASSES = 1000
# Channels of VGG's 3x3 convolutions; 'M': a 2x2 maximum (Simonyan & Zisserman, Table 1, A and D).
VGG = {
    'vgg11': (64, 'M', 128, 'M', 256, 256, 'M', 512, 512, 'M', 512, 512, 'M'),
    'vgg16': (
        64, 64, 'M', 128, 128, 'M', 256, 256, 256, 'M', 512, 512, 512, 'M', 512, 512, 512, 'M',
    ),
}  # fmt: skip
# Fire modules of SqueezeNet 1.1: squeezed channels, expanded channels of each half; 'M' as above.
FIRES = (
    (16, 64), (16, 64), 'M', (32, 128), (32, 128), 'M', (48, 192), (48, 192), (64, 256), (64, 256),
)  # fmt: skip
# Darknet-19: (channels, window), 'M': a 2x2 maximum (Redmon & Farhadi, YOLO9000, Table 6).
DARKNET = (
    (32, 3), 'M', (64, 3), 'M', (128, 3), (64, 1), (128, 3), 'M', (256, 3), (128, 1), (256, 3), 'M',
    (512, 3), (256, 1), (512, 3), (256, 1), (512, 3), 'M', (1024, 3), (512, 1), (1024, 3),
    (512, 1), (1024, 3),
)  # fmt: skip


def alexnet(batch: int = 1, image: int = 227, width: int = 1) -> Network:
    """Krizhevsky, Sutskever & Hinton, NIPS'12, Sec. 3.5: two groups in layers 2, 4 and 5, LRN."""
    net = Builder('alexnet', batch, image, width)
    x = net.relu(net.conv(INPUT, 96, 11, 4))
    x = net.max_pool(net.lrn(x, 2.0), 3, 2)
    x = net.relu(net.conv(x, 256, 5, 1, 2, groups=2))
    x = net.max_pool(net.lrn(x, 2.0), 3, 2)
    for k, groups in ((384, 1), (384, 2), (256, 2)):
        x = net.relu(net.conv(x, k, 3, 1, 1, groups=groups))
    x = net.flatten(net.max_pool(x, 3, 2))
    return net.finish(_perceptron(net, x))


def vgg11(batch: int = 1, image: int = 224, width: int = 1) -> Network:
    """Simonyan & Zisserman, ICLR'15, configuration A."""
    return _vgg('vgg11', batch, image, width)


def vgg16(batch: int = 1, image: int = 224, width: int = 1) -> Network:
    """Simonyan & Zisserman, ICLR'15, configuration D."""
    return _vgg('vgg16', batch, image, width)


def _vgg(name: str, batch: int, image: int, width: int) -> Network:
    net = Builder(name, batch, image, width)
    x = INPUT
    for k in VGG[name]:
        x = net.max_pool(x, 2, 2) if isinstance(k, str) else net.relu(net.conv(x, k, 3, 1, 1))
    return net.finish(_perceptron(net, net.flatten(x)))


def _perceptron(net: Builder, x: str) -> str:
    """The three fully connected layers that end AlexNet and VGG."""
    for _ in range(2):
        x = net.dropout(net.relu(net.linear(x, 4096)))
    return net.softmax(net.linear(x, CLASSES))


def nin(batch: int = 1, image: int = 224, width: int = 1) -> Network:
    """Lin, Chen & Yan, ICLR'14, in the form for ImageNet that its authors published for Caffe.

    Four convolutions, each followed by two 1x1 convolutions; the mean of every class's image.
    """
    net = Builder('nin', batch, image, width)
    x = INPUT
    for k, window, stride, pad in ((96, 11, 4, 0), (256, 5, 1, 2), (384, 3, 1, 1), (1024, 3, 1, 1)):
        last = k == 1024
        x = net.dropout(x) if last else x
        x = net.relu(net.conv(x, k, window, stride, pad))
        for out in (k, CLASSES if last else k):
            x = net.relu(net.conv(x, out, 1))
        x = x if last else net.max_pool(x, 3, 2, ceil=True)
    return net.finish(net.softmax(net.global_average(x)))


def squeezenet(batch: int = 1, image: int = 224, width: int = 1) -> Network:
    """Iandola et al., 2016; version 1.1, which its authors published later: less work, as good."""
    net = Builder('squeezenet', batch, image, width)
    x = net.relu(net.conv(INPUT, 64, 3, 2))
    x = net.max_pool(x, 3, 2, ceil=True)
    for fire in FIRES:
        if isinstance(fire, str):
            x = net.max_pool(x, 3, 2, ceil=True)
            continue
        squeezed, expanded = fire
        x = net.relu(net.conv(x, squeezed, 1))
        halves = [net.conv(x, expanded, 1), net.conv(x, expanded, 3, 1, 1)]
        x = net.concat([net.relu(half) for half in halves])
    x = net.relu(net.conv(net.dropout(x), CLASSES, 1))
    return net.finish(net.softmax(net.global_average(x)))


def darknet19(batch: int = 1, image: int = 224, width: int = 1) -> Network:
    """Redmon & Farhadi, CVPR'17, Table 6: the classifier of YOLO9000."""
    net = Builder('darknet19', batch, image, width)
    x = INPUT
    for step in DARKNET:
        if isinstance(step, str):
            x = net.max_pool(x, 2, 2)
            continue
        k, window = step
        x = net.batch_norm(net.conv(x, k, window, 1, window // 2, bias=False))
        x = net.leaky_relu(x, 0.1)
    return net.finish(net.softmax(net.global_average(net.conv(x, CLASSES, 1))))
