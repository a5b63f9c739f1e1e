"""Export a network as C, build it with `make`, and let it check itself.

    python examples/export_c.py                                   ResNet-18, into ./resnet18_c
    python examples/export_c.py --image 64 --width 8              a small one, in seconds

What is in the folder needs a C compiler and nothing else: no Python, nothing of this package.
"""

import argparse
import subprocess
from pathlib import Path

import tilewright as tw
from tilewright import zoo

parser = argparse.ArgumentParser()
parser.add_argument('--model', help='an .onnx or .tw file')
parser.add_argument('--folder', type=Path, default=Path('resnet18_c'))
parser.add_argument('--image', type=int, default=224)
parser.add_argument('--width', type=int, default=1)
options = parser.parse_args()

model = options.model or zoo.onnx_model('resnet18', image=options.image, width=options.width)
made = tw.export(model, options.folder)
for file in made.files:
    print(f'{made.folder / file}: {(made.folder / file).stat().st_size} bytes')

subprocess.run(['make', '-C', made.folder, 'all'], check=True, stdout=subprocess.DEVNULL)
answer = subprocess.run(
    [f'./{made.name}_test'], cwd=made.folder, check=True, capture_output=True, text=True
)
print(answer.stdout, end='')
