"""Networks as C: built by `make` in a folder of their own, compared with numpy's results."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import graphs
import numpy as np
import onnx
import pytest
from marks import needs_make
from onnx import TensorProto, helper, numpy_helper
from test_quantize import samples, small_model

import tilewright as tw
from tilewright.cli.main import invoke
from tilewright.errors import InputError
from tilewright.graph.concat import concat
from tilewright.graph.evaluate import evaluate
from tilewright.graph.fuse import fuse
from tilewright.graph.graph import Value
from tilewright.graph.memory import plan
from tilewright.graph.passes import HALF, PROGRAM_PASSES, apply_passes, with_narrow
from tilewright.graph.program import Program
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schemas.narrow.plan import has_narrow, why_not
from tilewright.kernels.cpu.sized import SizedSource, read_source
from tilewright.machine.known import known_machine
from tilewright.machine.measure import load_machine
from tilewright.network.compile import prepare
from tilewright.network.export import Exported, write_files, write_network
from tilewright.search.cpu.choose import choose
from tilewright.standalone import source as c
from tilewright.standalone.tables import AtSize, tables
from tilewright_lab.simulate.emulate import cannot_run, is_translated


def odd_results() -> Program:
    """Results that are inputs, constants, views, parts, whole numbers or named like words of C."""
    nodes = [
        graphs.node('Relu', 'x', 'a'),
        graphs.node('Flatten', 'a', 'for'),
        graphs.node('Identity', 'x', 'a.b/c'),
        graphs.node('Identity', 'a', 'a_b_c'),
        graphs.node('Identity', 'k', 'known'),
        graphs.node('Split', 'a', 'left right', axis=1, num_outputs=2),
        graphs.node('ArgMax', 'x', 'most', axis=1),
        graphs.node('Greater', 'x k0', 'bigger'),
    ]
    outputs = 'a for a.b/c a_b_c known left right most bigger'
    made = graphs.graph(
        {'x': (1, 4, 3)}, outputs, nodes, k=graphs.floats(3), k0=np.zeros(1, np.float32)
    )
    return concat(graphs.lowered(made))


def joined() -> Program:
    return concat(fuse(graphs.lowered(graphs.branches()), lambda _: 0.0))


PROGRAMS = {
    'convolutions': lambda: graphs.lowered(graphs.convolutions()),
    'branches': joined,
    'odd': odd_results,
}


def exported(folder: Path, name: str, program: Program, threads: int = 2) -> Exported:
    return write_network(folder, name, graphs.quick(program, threads), program)


def store_reference(made: Exported, program: Program, seed: int = 1) -> dict[str, np.ndarray]:
    """Replace what the test compares with by what numpy computes."""
    inputs = graphs.inputs_of(program, seed)
    results = evaluate(program, inputs)
    arrays = [np.ascontiguousarray(array) for array in (*inputs.values(), *results.values())]
    (made.folder / f'{made.name}.check').write_bytes(b''.join(a.tobytes() for a in arrays))
    return results


def make(made: Exported, *goals: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ['make', '-j2', 'CFLAGS=-O1', *goals], cwd=made.folder, capture_output=True, text=True
    )


@needs_make
@pytest.mark.parametrize('name', PROGRAMS)
def test_an_exported_network_checks_itself(name, tmp_path):
    program = PROGRAMS[name]()
    made = exported(tmp_path / 'new' / 'folder', name, program)
    assert make(made, 'check').returncode == 0
    results = store_reference(made, program)
    done = make(made, 'check')
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(': right, ') == len(results)
    assert 'median of 20 calls' in done.stdout


def quantised() -> Program:
    """A convolution of 8-bit numbers, a depthwise one and a product."""
    rng = np.random.default_rng(2)
    arrays = {
        'xs': np.float32(0.02), 'xz': np.uint8(7), 'ws': np.float32(0.01), 'wz': np.int8(0),
        'ys': np.float32(0.05), 'yz': np.uint8(9),
        'u': rng.integers(-99, 99, (72, 8, 1, 1)).astype(np.int8),
        'v': rng.integers(-99, 99, (72, 1, 3, 3)).astype(np.int8),
        'w': rng.integers(-99, 99, (10, 72, 5, 4)).astype(np.int8),
    }  # fmt: skip
    nodes, last = [], 'x'
    for number, name in enumerate(('', 'u', 'v', 'w')):
        scale = ['ys', 'yz'] if number else ['xs', 'xz']
        if name:
            how = {'pads': [1] * 4, 'group': 72} if name == 'v' else {}
            nodes.append(helper.make_node('DequantizeLinear', [name, 'ws', 'wz'], [f'{name}f']))
            nodes.append(helper.make_node('Conv', [last, f'{name}f'], [f'c{number}'], **how))
            last = f'c{number}'
        nodes.append(helper.make_node('QuantizeLinear', [last, *scale], [f'q{number}']))
        nodes.append(helper.make_node('DequantizeLinear', [f'q{number}', *scale], [f'd{number}']))
        last = f'd{number}'
    nodes[-1].output[0] = 'out'
    graph = helper.make_graph(
        nodes, 'quantised', [helper.make_tensor_value_info('x', TensorProto.FLOAT, (1, 8, 5, 4))],
        [helper.make_tensor_value_info('out', TensorProto.FLOAT, (1, 10, 1, 1))],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 21)], ir_version=10)
    return prepare(made)


def narrow() -> Program:
    """A product whose weights are stored in 16 bits."""
    made = graphs.graph(
        {'x': (2, 128)}, 'y', [graphs.node('MatMul', 'x w', 'y')], w=graphs.floats(128, 200)
    )
    passes = with_narrow(PROGRAM_PASSES, 'f16', why_not)
    return apply_passes(made, {'fuse', HALF}, lambda _: 0.0, passes)


@needs_make
@pytest.mark.parametrize(
    ('made', 'schemas'), [(quantised, {'dot', 'channelwise'}), (narrow, {'narrow'})]
)
def test_small_types_are_exported(made, schemas, tmp_path):
    """Kernels of 8-bit numbers and weights of 16 bits, as the network itself has them."""
    program = made()
    machine, _ = load_machine(measure=False)
    if schemas == {'narrow'} and not has_narrow(machine.isa):
        pytest.skip(
            f'16-bit weights need AVX2 or AVX-512, and this processor has {machine.isa}: run this '
            f'test on an x86 machine'
        )
    net = tw.compile(program, machine=machine, threads=2, passes=[])
    used = {kernel.schedule.schema for kernel in net.kernels.values()}
    assert used >= schemas
    files = write_network(tmp_path / 'net', 'net', net, program)
    results = store_reference(files, program)
    done = make(files, 'check')
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(': right, ') == len(results)


@needs_make
def test_what_is_wrong_is_found(tmp_path):
    program = PROGRAMS['convolutions']()
    made = exported(tmp_path / 'net', 'net', program)
    assert make(made).returncode == 0
    check, weights = made.folder / 'net.check', made.folder / 'net.weights'

    def code() -> tuple[int, str]:
        done = subprocess.run(['./net_test', '0'], cwd=made.folder, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    assert code()[0] == 0
    right = check.read_bytes()
    changed = np.frombuffer(right, np.float32).copy()
    changed[-1] += 0.01 * np.abs(changed).max()
    check.write_bytes(changed.tobytes())
    assert code() == (1, code()[1])
    assert 'WRONG' in code()[1]
    check.write_bytes(right[:-1])
    assert code()[0] == 2
    check.write_bytes(right)
    for damage in ('flipped', 'cut', 'longer', 'missing'):
        data = bytearray(weights.read_bytes())
        kept = bytes(data)
        if damage == 'flipped':
            data[len(data) // 2] ^= 1
        weights.write_bytes(
            {'cut': data[:-64], 'longer': data + b'\0', 'flipped': data}.get(damage, b'')
        )
        if damage == 'missing':
            weights.unlink()
        number, said = code()
        assert number == 2
        assert ('cannot be opened' if damage == 'missing' else 'damaged') in said
        weights.write_bytes(kept)
    assert code()[0] == 0


MAIN = """
#include <pthread.h>
#include <stdio.h>
#include "one.h"
#include "two.h"

static float x[ONE_X_ELEMENTS], want[ONE_Y_ELEMENTS], z[TWO_X_ELEMENTS], out[TWO_OUT_ELEMENTS];
static one *shared;
static _Atomic int wrong;

static void *calls(void *unused)
{
    const char *why;
    one *own = one_open("one/one.weights", &why);
    for (int i = 0; i < 200; i++) {
        float y[ONE_Y_ELEMENTS] = {0};
        one_run(i % 2 ? shared : own, x, y);
        for (int j = 0; j < ONE_Y_ELEMENTS; j++)
            wrong += y[j] != want[j];
    }
    one_close(own);
    return unused;
}

int main(void)
{
    pthread_t threads[4];
    shared = one_open("one/one.weights", NULL);
    two *other = two_open("two/two.weights", NULL);
    if (one_open("two/two.weights", NULL) || !shared || !other)
        return 3;
    for (int i = 0; i < ONE_X_ELEMENTS; i++)
        x[i] = (float)(i % 7) - 3.0f;
    for (int i = 0; i < TWO_X_ELEMENTS; i++)
        z[i] = (float)(i % 5) - 2.0f;
    one_run(shared, x, want);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, calls, NULL);
    for (int i = 0; i < 200; i++)
        two_run(other, z, out);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    one_close(shared), two_close(other);
    fwrite(want, sizeof *want, ONE_Y_ELEMENTS, stdout);
    fwrite(out, sizeof *out, TWO_OUT_ELEMENTS, stdout);
    return wrong != 0;
}
"""


@needs_make
def test_two_networks_in_one_program_and_several_threads(tmp_path):
    programs = {'one': PROGRAMS['convolutions'](), 'two': PROGRAMS['branches']()}
    for name, program in programs.items():
        assert make(exported(tmp_path / name, name, program)).returncode == 0
    (tmp_path / 'main.c').write_text(MAIN)
    subprocess.run(
        ['cc', '-std=gnu11', '-pthread', '-Ione', '-Itwo', 'main.c', 'one/libone.a', 'two/libtwo.a',
         '-o', 'main', '-lm'],
        cwd=tmp_path, check=True,
    )  # fmt: skip
    done = subprocess.run(['./main'], cwd=tmp_path, capture_output=True, check=True)
    got = np.frombuffer(done.stdout, np.float32)
    x = (np.arange(144) % 7 - 3).astype(np.float32).reshape(1, 4, 6, 6)
    z = (np.arange(75) % 5 - 2).astype(np.float32).reshape(1, 3, 5, 5)
    want = [evaluate(programs['one'], {'x': x})['y'], evaluate(programs['two'], {'x': z})['out']]
    np.testing.assert_allclose(got, np.concatenate([w.ravel() for w in want]), 1e-4, 1e-4)


@needs_make
@pytest.mark.skipif(not shutil.which('nm'), reason='nm is not installed')
def test_names_begin_with_the_network_and_the_source_is_one_unit(tmp_path):
    """Without the macro the source is all of the network; nothing else is visible outside."""
    made = exported(tmp_path / 'net', 'mynet', PROGRAMS['branches']())
    subprocess.run(
        ['cc', '-std=gnu11', '-fopenmp-simd', '-pthread', '-c', 'mynet.c', '-o', 'all.o'],
        cwd=made.folder, check=True,
    )  # fmt: skip
    symbols = subprocess.run(
        ['nm', '--defined-only', '-g', 'all.o'], cwd=made.folder, capture_output=True, text=True
    ).stdout
    names = [line.split()[-1] for line in symbols.splitlines()]
    assert {'mynet_open', 'mynet_run', 'mynet_close'} <= set(names)
    assert all(name.startswith('mynet_') for name in names)


def test_names_at_file_scope_are_found_in_every_kind_of_kernel():
    """A name at file scope that was missed would be defined by two kernels."""
    for path in sorted((Path(__file__).parents[1] / 'golden').glob('*.c')):
        made = c.kernel(path.read_text(), 'net', 7)
        for line in made.splitlines():
            if re.match(r'[a-z].*[({;]$', line) and not line.startswith(
                ('typedef struct', 'union')
            ):
                assert re.search(r'\b(k7_|net_k7_)\w+', line), f'{path.name}: {line}'
        assert 'tw_' not in made


def for_x86(isa: str, machine: str, pool: str) -> tuple[c.Standalone, Program]:
    """A convolution by the best schedule for another machine, and a pooling."""
    nodes = [
        graphs.node('Conv', 'x w b', 'a', pads=(1, 1, 1, 1)),
        graphs.node('Relu', 'a', 'r'),
        graphs.node('MaxPool', 'r', 'y', kernel_shape=(2, 2)),
    ]
    weights = {'w': graphs.floats(20, 3, 3, 3), 'b': graphs.floats(20)}
    made = graphs.graph({'x': (1, 3, 7, 9)}, 'y', nodes, **weights)
    program = fuse(graphs.lowered(made), lambda _: 0.0)
    known, kernels, sources = known_machine(machine), [], {}
    for task in program.tasks:
        schedule = choose(task.group, known, 1, 1)[0].schedule
        source = sources[task.group.digest] = read_source(generate(task.group, schedule))
        text = SizedSource.of([source]).source
        kernels.append(c.KernelSource(text, schedule.isa, compiler_flags(schedule)))
    values = tuple(Value(n, program.values[n].shape) for n in ('x', 'y'))
    net = c.Standalone(
        'net', values[:1], values[1:],
        tables([AtSize.only(program, plan(program), sources)]), tuple(kernels), pool,
        ('-std=gnu11', '-O1', '-pthread'), 1, 'p */ int',
    )  # fmt: skip
    assert {kernel.isa for kernel in kernels} == {isa}
    return net, program


def test_an_export_for_x86_asks_for_its_instructions():
    net, _ = for_x86('avx2', 'i7-9700k', '')
    text = c.source(net)
    assert '#if !defined(__x86_64__)' in text
    assert '__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")' in text
    assert 'p */' not in text
    assert 'FLAGS_1 = -mavx2 -mfma' in c.makefile(net)


@needs_make
@pytest.mark.isa
@pytest.mark.parametrize(('isa', 'machine'), [('avx2', 'i7-9700k'), ('avx512', 'i9-10980xe')])
def test_an_export_for_x86_runs_there(isa, machine, tools, tmp_path):
    """On the host or in an emulator; a processor without the instructions is refused."""
    if reason := cannot_run(isa):
        pytest.skip(f'{isa} cannot run: {reason}')
    if is_translated(isa):
        pytest.skip(f'{isa} cannot run: an export is made for processors that have it')
    pool = resources.files('tilewright.runtime').joinpath('pool.c').read_text()
    net, program = for_x86(isa, machine, pool)
    inputs = graphs.inputs_of(program)
    write_files(tmp_path, net, [*inputs.values(), *evaluate(program, inputs).values()])
    found = tools(isa)
    archiver = re.sub(r'(^|-)(gcc|clang|cc)$', r'\1ar', found.compile[0])
    words = ['make', f'CC={" ".join(found.compile)}', f'AR={archiver}', 'all']
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run(
        [*found.run, './net_test', '1'], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'y: right' in done.stdout
    if 'max' in found.run:
        older = [word if word != 'max' else 'Nehalem' for word in found.run]
        done = subprocess.run([*older, './net_test'], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2
        assert f'cannot run what the network was compiled for: {isa}' in done.stderr


@pytest.mark.parametrize(
    ('text', 'word'),
    [('resnet18', 'resnet18'), ('1st.conv/out', 'n1st_conv_out'), ('for', 'for_'), ('ä', 'n'),
     ('', 'n'), ('net', 'net_'), ('a b', 'a_b')],
)  # fmt: skip
def test_words_of_c(text, word):
    assert c.c_name(text) == word
    assert c.is_c_name(c.c_name(text))


def test_parameters_differ():
    values = [Value(name, (1,)) for name in ('a.b', 'a/b', 'a_b')]
    assert c.parameters(values, ['a_b_2']) == ['a_b', 'a_b_3', 'a_b_4']


@pytest.mark.parametrize('place', ['not empty', 'a file', 'under a file', 'name'])
def test_places_that_cannot_take_it_are_refused_before_the_work(place, tmp_path):
    folder, name, message = tmp_path / 'x', None, 'name an empty or new directory'
    if place == 'not empty':
        folder.mkdir()
        (folder / 'y').write_text('')
    elif place == 'a file':
        folder.write_text('')
    elif place == 'under a file':
        folder.write_text('')
        folder, message = folder / 'y', 'cannot be written'
    else:
        name, message = 'int x;', 'cannot begin names'
    with pytest.raises(InputError, match=message) as caught:
        tw.export('there is no such model.onnx', folder, name=name)
    assert '\n' not in str(caught.value)


@pytest.mark.skipif(not hasattr(os, 'geteuid') or os.geteuid() == 0, reason='root may write all')
def test_a_folder_without_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match='cannot be written'):
        tw.export('there is no such model.onnx', tmp_path / 'new')


@needs_make
@pytest.mark.filterwarnings('ignore:.*nominal figures.*')
@pytest.mark.parametrize(
    ('words', 'code'),
    [
        (['int8'], 0),
        (['auto', '--accuracy', 'rel=0.5'], 0),
        (['auto', '--accuracy', 'rel=1e-9'], 1),
    ],
)
def test_types_are_chosen_as_it_is_exported(words, code, tmp_path):
    """C of a model of floats in other types, by samples; an accuracy that no mix reaches is
    exported all the same, with exit code 1.
    """
    pytest.importorskip('onnxruntime')
    model, data, to = tmp_path / 'm.onnx', tmp_path / 'x.npy', tmp_path / 'c'
    onnx.save(small_model(), model)
    np.save(data, samples(8))
    given = ['--samples', str(data), '--name', 'm', '--threads', '1', '--json', str(tmp_path / 'j')]
    assert invoke(['export', str(model), '-o', str(to), '--precision', *words, *given]) == code
    report = json.loads((tmp_path / 'j').read_text())
    assert report['precision'] == words[0]
    assert (report['mix'] is None) == (words[0] == 'int8')
    integers = any(kind == 'int8' for kind in (report['mix'] or {}).get('types', {}).values())
    if words[0] == 'int8' or integers:
        assert 'int8_t' in (to / 'm.c').read_text()
    made = subprocess.run(
        ['make', '-j2', 'CFLAGS=-O1', 'all', 'check'], cwd=to, capture_output=True, text=True
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr


@needs_make
@pytest.mark.filterwarnings('ignore:.*nominal figures.*')
def test_export_on_the_command_line(tmp_path, capsys):
    weights = numpy_helper.from_array(graphs.floats(4, 3, 1, 1), 'w')
    float32 = TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node('Conv', ['x', 'w'], ['y'])], 'small',
        [helper.make_tensor_value_info('x', float32, ['n', 3, 4, 4])],
        [helper.make_tensor_value_info('y', float32, ['n', 4, 4, 4])], [weights],
    )  # fmt: skip
    opset = [helper.make_opsetid('', 21)]
    model, saved = tmp_path / 'Small-Net.onnx', tmp_path / 'small.tw'
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), model)
    shape = ['--shape', 'x=1,3,4,4', '--threads', '1']
    assert invoke(['export', str(model), '-o', str(tmp_path / 'first'), *shape]) == 0
    assert (tmp_path / 'first' / 'small_net.c').exists()
    assert invoke(['compile', str(model), '-o', str(saved), *shape]) == 0
    words = ['-o', str(tmp_path / 'c'), '--name', 'tiny', '--json', str(tmp_path / 'report.json')]
    assert invoke(['export', str(saved), *words, '--threads', '1']) == 0
    assert json.loads((tmp_path / 'report.json').read_text())['name'] == 'tiny'
    assert '#define TINY_THREADS 1' in (tmp_path / 'c' / 'tiny.h').read_text()
    assert 'make -C' in capsys.readouterr().out
    assert subprocess.run(
        ['make', '-j2', 'CFLAGS=-O1', 'all', 'check'], cwd=tmp_path / 'c', capture_output=True
    ).returncode == 0  # fmt: skip
    assert invoke(['export', str(model), '-o', str(tmp_path / 'c')]) == 2
    assert 'is not empty' in capsys.readouterr().err
    assert invoke(['export', str(saved), '-o', str(tmp_path / 'd'), '--tune', 'measure']) == 2
    assert 'tune= means nothing with' in capsys.readouterr().err
    typed = ['export', str(saved), '-o', str(tmp_path / 'd'), '--precision', 'int8']
    assert invoke(typed) == 2
    assert 'precision= means nothing with' in capsys.readouterr().err
    assert invoke(['export', 'nothing', '-o', str(tmp_path / 'd')]) == 2
    assert 'no network of the zoo' in capsys.readouterr().err
