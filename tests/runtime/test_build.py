"""The compile cache: built once, damaged entries rebuilt, bounded; errors that say what to do."""

import ctypes
import hashlib
import os
import subprocess
import sys
import time

import pytest

from tilewright.errors import CompilerError, MissingError, StoreError
from tilewright.machine import compiler as building
from tilewright.machine import private
from tilewright.machine.compiler import build, prune, run_compiler

SOURCE = 'int answer(void) { return 42; }'


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / 'cache'
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(folder))
    for name in ('CC', 'CFLAGS', 'DUMP', 'TIME_LIMIT'):
        monkeypatch.delenv(f'TILEWRIGHT_{name}', raising=False)
    monkeypatch.delenv('CC', raising=False)
    return folder


@pytest.fixture
def compilations(monkeypatch):
    """The names of the sources that the compiler is run on."""
    seen = []

    def counted(words):
        seen.append(words[-4].rsplit('/', 1)[1])
        run_compiler(words)

    monkeypatch.setattr(building, 'run_compiler', counted)
    return seen


def _answer(library) -> int:
    """Loaded in a process of its own: an interpreter keeps a library once it has it."""
    code = f'import ctypes; print(ctypes.CDLL({str(library)!r}).answer())'
    return int(subprocess.run([sys.executable, '-c', code], capture_output=True, check=True).stdout)


def test_the_same_source_is_built_once(compilations):
    library = build(SOURCE, name='a')
    assert ctypes.CDLL(str(library)).answer() == 42
    assert build(SOURCE, name='a') == library
    assert compilations == ['a.c']
    assert library.with_suffix('.c').read_text() == SOURCE


def test_source_flags_and_compiler_make_the_key(monkeypatch, tmp_path):
    first = build(SOURCE)
    assert build(SOURCE, ('-DX=1',)) != first
    assert build(SOURCE + ' ') != first
    with monkeypatch.context() as patch:
        patch.setenv('TILEWRIGHT_CFLAGS', '-O1 "-DTEXT=a b"')
        assert build(SOURCE) != first
    wrapper = tmp_path / 'mycc'
    wrapper.write_text(
        '#!/bin/sh\n'
        'case "$1" in --version) echo another compiler;; '
        f'*) exec {" ".join(building.compiler())} "$@";; esac\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv('TILEWRIGHT_CC', str(wrapper))
    assert build(SOURCE) != first


@pytest.mark.parametrize('damage', ['cut', 'flip', 'library', 'sum', 'empty', 'garbage sum'])
def test_a_damaged_entry_is_built_again(damage, compilations):
    library = build(SOURCE)
    data, total = library.read_bytes(), library.parent / 'seal'
    if damage == 'cut':
        library.write_bytes(data[: len(data) // 2])
    elif damage == 'flip':
        library.write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])
    elif damage == 'library':
        library.unlink()
    elif damage == 'sum':
        total.unlink()
    elif damage == 'garbage sum':
        total.write_bytes(b'\xff\xfe')
    else:
        library.write_bytes(b'')
    assert build(SOURCE) == library
    assert _answer(library) == 42
    assert compilations == ['kernel.c'] * 2
    assert [p.name for p in library.parent.parent.iterdir()] == [library.parent.name]


def test_a_library_that_is_in_use_is_replaced_not_overwritten():
    library = build(SOURCE)
    loaded = ctypes.CDLL(str(library))
    before = library.stat().st_ino
    (library.parent / 'seal').write_text('0')
    build(SOURCE)
    assert library.stat().st_ino != before
    assert loaded.answer() == 42


def test_builders_at_the_same_time_agree():
    code = f'from tilewright.machine.compiler import build; print(build({SOURCE!r}))'
    builders = [
        subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = {b.communicate()[0].strip() for b in builders}
    assert len(said) == 1
    assert [b.returncode for b in builders] == [0, 0, 0]
    assert _answer(said.pop()) == 42


def test_the_cache_is_bounded_and_the_longest_unused_go_first(cache):
    libraries = [build(f'int answer(void) {{ return {n}; }}', name=f'n{n}') for n in range(4)]
    now = time.time()
    for library, hours in zip(libraries, (5, 3, 4, 0), strict=True):
        os.utime(library.parent, (now - 3600 * hours,) * 2)
    size = sum(f.stat().st_size for f in libraries[0].parent.iterdir())
    left = cache / 'code' / 'zz' / 'tmpkilled'
    left.mkdir(parents=True)
    os.utime(left, (now - 7200,) * 2)
    assert prune(limit_bytes=size * 5) == 1  # the left-over only
    assert not left.exists()
    assert prune(limit_bytes=int(size * 2.5)) == 2
    assert [p.exists() for p in libraries] == [False, True, False, True]
    assert prune(limit_bytes=0) == 1  # what was used within the hour stays
    assert [p.exists() for p in libraries] == [False, False, False, True]
    assert prune(limit_bytes=0, keep_seconds=-1) == 1


def test_a_hit_counts_as_use():
    library = build(SOURCE)
    os.utime(library.parent, (1, 1))
    build(SOURCE)
    assert prune(limit_bytes=0) == 0


def test_dump_writes_source_library_and_command_also_for_a_hit(tmp_path, monkeypatch):
    library = build(SOURCE, ('-DX=1',))
    monkeypatch.setenv('TILEWRIGHT_DUMP', str(tmp_path / 'dump'))
    assert build(SOURCE, ('-DX=1',)) == library
    made = {p.suffix: p for p in (tmp_path / 'dump').iterdir()}
    assert set(made) == {'.c', '.so', '.cmd'}
    assert made['.c'].read_text() == SOURCE
    assert made['.so'].read_bytes() == library.read_bytes()
    assert '-DX=1' in made['.cmd'].read_text()


def test_a_refused_source_gives_the_first_complaint_and_leaves_nothing(cache):
    with pytest.raises(CompilerError, match=r'failed: .*unfinished'):
        build('#error unfinished\n#error more\n')
    assert [p for p in cache.rglob('*') if p.is_file()] == []


def test_a_compiler_that_never_ends_is_stopped_with_its_passes(tmp_path, monkeypatch):
    endless = tmp_path / 'endless'
    endless.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && exit\n'
        f'sleep 1000 & echo $! > {tmp_path}/pid; wait\n'
    )  # fmt: skip
    endless.chmod(0o755)
    monkeypatch.setenv('TILEWRIGHT_CC', str(endless))
    monkeypatch.setenv('TILEWRIGHT_TIME_LIMIT', '0.5')
    with pytest.raises(CompilerError, match=r'longer than 0.5 s; raise TILEWRIGHT_TIME_LIMIT'):
        build(SOURCE)
    orphan = int((tmp_path / 'pid').read_text())
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and _runs(orphan):
        time.sleep(0.01)
    assert not _runs(orphan)


def _runs(pid: int) -> bool:
    try:
        with open(f'/proc/{pid}/stat') as file:
            return file.read().rsplit(')', 1)[1].split()[0] != 'Z'
    except FileNotFoundError:
        return False


def test_no_compiler_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv('PATH', str(tmp_path))
    monkeypatch.setitem(sys.modules, 'ziglang', None)
    with pytest.raises(MissingError, match='no C compiler was found; install gcc or clang'):
        build(SOURCE)


def test_a_compiler_that_is_named_but_absent_is_one_sentence(monkeypatch):
    monkeypatch.setenv('TILEWRIGHT_CC', 'no-such-cc')
    with pytest.raises(MissingError, match="TILEWRIGHT_CC='no-such-cc' is not a program"):
        build(SOURCE)
    with pytest.raises(MissingError, match='no-such-cc cannot be run'):
        run_compiler(['no-such-cc'])


def test_an_unwritable_cache_or_dump_is_one_sentence(tmp_path, monkeypatch):
    file = tmp_path / 'file'
    file.write_text('')
    monkeypatch.setenv('TILEWRIGHT_DUMP', str(file / 'dump'))
    with pytest.raises(StoreError, match=r'TILEWRIGHT_DUMP=.* cannot be written'):
        build(SOURCE)
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(file / 'cache'))
    with pytest.raises(StoreError, match=r'TILEWRIGHT_CACHE_DIR=.* cannot be written'):
        build(SOURCE)


def test_a_cache_that_becomes_unusable_is_one_sentence(cache):
    cache.mkdir()
    (cache / 'code').write_text('a file where the folder should be')
    with pytest.raises(StoreError, match=r'compile cache .* cannot be used \(.*\); free it'):
        build(SOURCE)


def test_a_read_only_home_gets_a_temporary_cache(tmp_path, monkeypatch):
    file = tmp_path / 'file'
    file.write_text('')
    monkeypatch.delenv('TILEWRIGHT_CACHE_DIR')
    monkeypatch.setattr(building, '_user_cache', lambda: file / 'home')
    with pytest.warns(UserWarning, match='cannot be written, so this run is remembered in'):
        folder = building.cache_dir()
    assert folder.is_dir()
    assert building.cache_dir() == folder
    assert building.for_children() == {'TILEWRIGHT_CACHE_DIR': str(folder)}
    folder.rmdir()
    building._fallback_dir.cache_clear()
    assert building.for_children() == {}


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def test_what_is_made_is_for_this_user_alone_whatever_the_umask(cache, open_umask):
    library = build(SOURCE)
    for path in (cache, *cache.rglob('*')):
        if path.is_dir() or path == library or path.name == 'key':
            assert path.stat().st_mode & 0o077 == 0, path


def test_a_directory_that_others_can_write_is_refused_with_a_remedy(cache):
    cache.mkdir()
    cache.chmod(0o777)
    with pytest.raises(
        StoreError, match=r'others can write to it \(mode 0777\); run `chmod -R go-w'
    ):
        build(SOURCE)
    cache.chmod(0o700)
    inner = build(SOURCE).parents[1]
    inner.chmod(0o777)
    with pytest.raises(StoreError, match=f'{inner} is not safe to load code from'):
        build(SOURCE)


@pytest.mark.skipif(os.geteuid() != 0, reason='only root can give files away')
@pytest.mark.parametrize('what', ['root', 'code', 'library', 'key'])
def test_what_belongs_to_another_user_is_not_loaded(cache, compilations, what):
    library = build(SOURCE)
    paths = {
        'root': cache, 'code': cache / 'code', 'library': library, 'key': cache / private.KEY
    }  # fmt: skip
    os.chown(paths[what], 12345, 12345)
    building._writable.cache_clear()
    private._key.cache_clear()
    if what == 'library':
        build(SOURCE)
        assert len(compilations) == 2
        return
    with pytest.raises(StoreError, match='belongs to user 12345, and you are 0'):
        build(SOURCE)


def test_a_library_that_somebody_placed_there_is_not_loaded(cache, compilations):
    """With a checksum that matches: it is the seal that only this user can make."""
    library = build(SOURCE)
    other = build('int answer(void) { return 666; }')
    library.write_bytes(other.read_bytes())
    (library.parent / 'seal').write_text(hashlib.sha256(other.read_bytes()).hexdigest())
    assert _answer(build(SOURCE)) == 42
    assert len(compilations) == 3


def fake_compiler(path, version: str):
    """A compiler that answers `--version` by a line of shell."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && {{ {version}; exit; }}\nexec gcc "$@"\n')
    path.chmod(0o755)
    return path


def test_a_compiler_whose_version_never_comes_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv('TILEWRIGHT_CC', str(fake_compiler(tmp_path / 'cc', 'sleep 1000')))
    monkeypatch.setenv('TILEWRIGHT_TIME_LIMIT', '0.5')
    with pytest.raises(CompilerError, match=r'longer than 0.5 s; raise TILEWRIGHT_TIME_LIMIT'):
        build(SOURCE)


def test_a_version_in_any_encoding(tmp_path, monkeypatch):
    monkeypatch.setenv('TILEWRIGHT_CC', str(fake_compiler(tmp_path / 'cc', r"printf '\351\377'")))
    assert _answer(build(SOURCE)) == 42


def test_a_compiler_may_be_a_path_with_blanks_or_begin_with_a_tilde(tmp_path, monkeypatch):
    command = fake_compiler(tmp_path / 'my tools' / 'c c', 'echo odd')
    monkeypatch.setenv('HOME', str(tmp_path))
    for said, words in (
        (str(command), (str(command),)),
        ('~/my tools/c c', (str(command),)),
        (f"'{command}' -DX=1", (str(command), '-DX=1')),
    ):
        monkeypatch.setenv('TILEWRIGHT_CC', said)
        assert building.compiler() == words
    assert _answer(build(SOURCE)) == 42


def test_what_was_built_is_used_where_the_compiler_is_gone(tmp_path, monkeypatch):
    library = build(SOURCE)
    monkeypatch.setenv('PATH', str(tmp_path))
    monkeypatch.setitem(sys.modules, 'ziglang', None)
    assert build(SOURCE) == library
    with pytest.raises(MissingError, match='no C compiler was found'):
        build(SOURCE + ' ')


def test_the_users_cache_without_platformdirs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'platformdirs', None)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    assert building._user_cache() == tmp_path / 'tilewright'


def test_flags_of_gcc_are_for_gcc_alone() -> None:
    """Clang says what it is in front of its version, and does not know GCC's parameters."""
    ours = (
        'gcc (Debian 12.2.0-14) 12.2.0',
        'x86_64-linux-gnu-gcc-12 (Debian) 12',
        'cc (Ubuntu) 11',
    )
    others = ('Debian clang version 14.0.6', 'clang version 18.1.8 (https://llvm.org)', '')
    assert [building.is_gcc(line) for line in (*ours, *others)] == [True] * 3 + [False] * 3
