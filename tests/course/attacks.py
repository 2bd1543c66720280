"""Submissions that want points without an answer, or harm. Each is a file for stage 02 of
:mod:`judge_course`; none may pass a single check."""

from __future__ import annotations

#: What an attack does is `act()`, called when a pool is made; then it answers like a guess.
_FRAME = """
{imports}

def act(size=0):
{body}

class BlockAllocator:
    def __init__(self, num_blocks, name="GPU"):
        self.num_blocks = num_blocks
        self.answer = act(num_blocks)
    num_free = 0
    free_blocks = []
    def allocate(self): return 0
    def allocate_many(self, count): return []
    def share(self, block): pass
    def free(self, block): return True
    def free_many(self, blocks): pass
    def ref_count(self, block): return 0
"""


def attack(body: str, imports: str = "") -> str:
    """A submission that runs ``body``."""
    lines = "\n".join("    " + line for line in body.strip("\n").splitlines())
    return _FRAME.format(imports=imports, body=lines)


def wearing(code: str) -> str:
    """A submission that gets a ``BlockAllocator`` from elsewhere."""
    return code.strip("\n") + "\n"


#: Uses up what the worker has.
GREEDY = {
    "an endless loop": attack("while True: pass"),
    "an endless loop in C": attack("sum(iter(int, 1))"),
    "an error whose text never ends": attack(
        "class Endless(Exception):\n    def __str__(self):\n        while True: pass\n"
        "raise Endless(1, 2)"
    ),
    "sleep": attack("time.sleep(60)", "import time"),
    "memory": attack("kept = []\nwhile True: kept.append(bytearray(1 << 20))"),
    "memory that is only promised": attack("return bytearray(1 << 40)"),
    "disk, one file": attack(
        "with open('big', 'wb') as big:\n    for _ in range(64): big.write(bytes(1 << 20))"
    ),
    "disk, many files": attack(
        "for i in range(64):\n    open(f'f{i}', 'wb').write(bytes(1 << 20))\ntime.sleep(60)",
        "import time",
    ),
    "disk, by printing": attack("while True: os.write(1, bytes(1 << 16))", "import os"),
    "recursion": attack("return act(size)"),
    "a huge answer": attack("return 0", "") + "    num_free = 'x' * (8 << 20)\n"
    "    def allocate(self): return self.num_free\n",
    "an answer in itself": attack("return 0")
    + "    def allocate(self):\n        x = []\n        x.append(x)\n        return x\n",
}

#: Ends what it runs in.
LEAVING = {
    "sys.exit while loading": "import sys\nsys.exit(0)\n",
    "sys.exit": attack("sys.exit(0)", "import sys"),
    "os._exit while loading": "import os\nos._exit(0)\n",
    "os._exit": attack("os._exit(0)", "import os"),
    "a signal to itself": attack("os.kill(os.getpid(), 9)", "import os"),
    "a crash": attack("ctypes.string_at(0)", "import ctypes"),
    "KeyboardInterrupt": attack("raise KeyboardInterrupt"),
    "GeneratorExit": attack("raise GeneratorExit"),
    "StopIteration": attack("raise StopIteration"),
    "pytest.skip": attack("import pytest\npytest.skip('not today')"),
    "pytest.exit": attack("import pytest\npytest.exit('all is well', 0)"),
    "all files closed": attack("os.closerange(0, 256)", "import os"),
}

#: Tells the judge what it wants to hear.
LYING = {
    "a printed report": attack(
        "print('5 passed in 0.01s')\n"
        'print(\'[{"name": "hands_out_every_block_once", "status": "passed"}]\', flush=True)'
    ),
    "answers written to the channel": attack(
        "for fd in range(3, 256):\n"
        "    try:\n"
        '        for i in range(50): os.write(fd, b\'{"id": %d, "ok": 0}\\n\' % i)\n'
        "    except OSError: pass",
        "import os",
    ),
    "an answer that is a bomb": attack(
        "for fd in range(3, 256):\n"
        "    try: os.write(fd, b'[' * 200000 + b'\\n')\n"
        "    except OSError: pass",
        "import os",
    ),
    "an array of objects": attack(
        "for fd in range(3, 256):\n"
        '    try: os.write(fd, b\'{"id": 2, "ok": {"a": ["|O", [1], "AAAAAAAAAAA="]}}\\n\')\n'
        "    except OSError: pass\n"
        "os._exit(0)",
        "import os",
    ),
    "an object equal to everything": attack("return 0")
    + """
    class Anything:
        def __eq__(self, other): return True
        def __ne__(self, other): return False
        def __hash__(self): return 0
        def __len__(self): return 0
        def __iter__(self): return iter([])
        __lt__ = __gt__ = __le__ = __ge__ = __contains__ = __eq__
    num_free = Anything()
    free_blocks = Anything()
    def allocate(self): return self.num_free
    def free(self, block): return self.num_free
    def ref_count(self, block): return self.num_free
""",
    "a number equal to everything": attack("return 0")
    + """
    class Any(int):
        def __eq__(self, other): return True
        def __ne__(self, other): return False
        def __hash__(self): return 0
        def __index__(self): return 0
    num_free = Any(7)
    def allocate(self): return self.Any(7)
    def free(self, block): return self.Any(7)
    def ref_count(self, block): return self.Any(7)
""",
    "a list equal to everything": attack("return 0")
    + """
    class Every(list):
        def __eq__(self, other): return True
        def __ne__(self, other): return False
    def allocate(self): return self.Every()
    def free(self, block): return self.Every()
""",
    "patched builtins and errors": attack(
        "builtins.isinstance = lambda *_: True\n"
        "builtins.AssertionError = Exception\n"
        "errors.OutOfBlocks = errors.DoubleFree = Exception\n"
        "testing.expect = lambda *_: None\n"
        "sys.modules['pytest'] = sys\n"
        "import minipaged.course.judge.wire as wire\n"
        "wire.encode = lambda *_: True\n"
        'json.dumps = lambda *_, **__: \'{"id": 1, "ok": true}\'',
        "import builtins, json, sys\nfrom minipaged import errors\n"
        "from minipaged.course import testing",
    ),
}

#: Gets the answer from somewhere.
COPYING = {
    "imports the reference": wearing(
        "from minipaged.kvcache.block_allocator import BlockAllocator as BlockAllocator"
    ),
    "imports it by name": wearing(
        "import importlib\n"
        "BlockAllocator = importlib.import_module('minipaged.kvcache.block_allocator')"
        ".BlockAllocator"
    ),
    "imports it without the judge's finder": wearing(
        "import importlib, sys\n"
        "mine = [f for f in sys.meta_path if 'minipaged' in getattr(type(f), '__module__', '')]\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if f not in mine]\n"
        "sys.modules.pop('minipaged.kvcache.block_allocator', None)\n"
        "from minipaged.kvcache.block_allocator import BlockAllocator as BlockAllocator"
    ),
    "loads its file": wearing(
        "import importlib.util, minipaged\n"
        "path = minipaged.__path__[0] + '/kvcache/block_allocator.py'\n"
        "spec = importlib.util.spec_from_file_location('answer', path)\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "BlockAllocator = module.BlockAllocator"
    ),
    "reads its file": wearing(
        "import minipaged\nexec(open(minipaged.__path__[0] + '/kvcache/block_allocator.py').read())"
    ),
    "reads it through a link": wearing(
        "import minipaged, os\n"
        "os.symlink(minipaged.__path__[0] + '/kvcache/block_allocator.py', 'mine.py')\n"
        "exec(open('mine.py').read())"
    ),
    "reads what is compiled": wearing(
        "import glob, marshal, minipaged\n"
        "[path] = glob.glob(minipaged.__path__[0]"
        " + '/kvcache/__pycache__/block_allocator.*[0-9].pyc')[:1]\n"
        "exec(marshal.loads(open(path, 'rb').read()[16:]))"
    ),
    "has cat read it": wearing(
        "import minipaged, subprocess\n"
        "path = minipaged.__path__[0] + '/kvcache/block_allocator.py'\n"
        "exec(subprocess.run(['cat', path], capture_output=True, text=True).stdout)"
    ),
    "imports the solutions": wearing(
        "import sys\n"
        "sys.path.insert(0, ROOT + '/solutions/stage02_block_allocator')\n"
        "del sys.modules['block_allocator']\n"
        "from block_allocator import BlockAllocator as BlockAllocator"
    ),
}

#: Would be bad news for the judge.
MEDDLING = {
    "opens the judge's memory": attack(
        "fd = os.open(f'/proc/{os.getppid()}/mem', os.O_RDWR)\nraise SystemError('OPEN')",
        "import os",
    ),
    "traces the judge": attack(
        "if ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0: raise SystemError('OPEN')\n"
        "raise PermissionError('no')",
        "import ctypes, os",
    ),
    "opens the judge's files": attack(
        "os.listdir(f'/proc/{os.getppid()}/fd')\n"
        "for fd in range(64): open(f'/proc/{os.getppid()}/fd/{fd}')\n"
        "raise SystemError('OPEN')",
        "import os",
    ),
    "takes root's powers": attack(
        "os.chown(os.getcwd(), 4711, 4711)\nraise SystemError('OPEN')", "import os"
    ),
    "mounts": attack(
        "if ctypes.CDLL(None).mount(b'none', b'/mnt', b'tmpfs', 0, 0) == 0:\n"
        "    raise SystemError('OPEN')\n"
        "raise PermissionError('no')",
        "import ctypes",
    ),
    "kills its parent": attack("os.kill(os.getppid(), 9)\ntime.sleep(60)", "import os, time"),
    "writes to the tests": attack(
        "open(ROOT + '/tests/stage02_block_allocator/conftest.py', 'w')\nraise SystemError('OPEN')"
    ),
    "reads the tests": attack(
        "raise SystemError('OPEN' + open(ROOT + '/course.toml').read())",
    ),
    "writes elsewhere": attack("open('/var/tmp/minipaged-was-here', 'w')"),
}

#: Leaves processes behind; what it prints are their numbers.
SPAWNING = {
    "a daemon": attack(
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        print(os.getpid(), flush=True)\n"
        "        time.sleep(300)\n"
        "    os._exit(0)\n"
        "time.sleep(0.2)",
        "import os, time",
    ),
    "a child that goes on": attack(
        "if os.fork() == 0:\n    print(os.getpid(), flush=True)\n    while True: pass\nos._exit(0)",
        "import os",
    ),
    "a child that answers too": attack("os.fork()\nprint(os.getpid(), flush=True)", "import os"),
}

FORK_BOMB = attack(
    "while True:\n"
    "    try: os.fork()\n"
    "    except OSError: pass\n"
    "    else: os.write(1, b'%d\\n' % os.getpid())",
    "import os",
)

#: What no hook sees: the C library does it.
_C_OPEN = "libc = ctypes.CDLL(None)\nfd = libc.open(PATH.encode(), FLAGS)\n"
READS_TESTS_IN_C = attack(
    _C_OPEN.replace("FLAGS", "0")
    + "raise SystemError('OPEN') if fd >= 0 else PermissionError('closed')",
    "import ctypes",
)
EDITS_TESTS_IN_C = attack(
    _C_OPEN.replace("FLAGS", "0o2001")  # O_WRONLY | O_APPEND
    + "libc.write(fd, b'\\n# was here\\n', 12)",
    "import ctypes",
)

#: Ends every process above it, up to the one that asked for the judge.
KILLS_THE_JUDGE = attack(
    "parent = int(open(f'/proc/{os.getppid()}/stat').read().rpartition(')')[2].split()[1])\n"
    "os.kill(parent, 9)\n"
    "os.kill(os.getppid(), 9)\n"
    "time.sleep(60)",
    "import os, time",
)
