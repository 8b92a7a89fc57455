# program: python
# needs: python3
# version: python3 --version
# does: multiprocessing (fork, spawn, forkserver, shared_memory, Manager, pools), asyncio subprocesses and unix sockets, sqlite3 with WAL, pty, mmap, signals, names of hosts
# kind: core
# makes: main.py db.sqlite
# differs: db\.sqlite
# varies: __pycache__

job() {
	cat > main.py <<'END'
import asyncio, ctypes, getpass, mmap, multiprocessing as mp, os, pty, resource, select, signal, socket, sqlite3, subprocess, sys, tempfile, threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import shared_memory

def square(n): return n * n

def fill(name, lock, value):
    with lock:
        s = shared_memory.SharedMemory(name=name)
        s.buf[0] += 1
        s.close()
        value.value += 1

def processes():
    for method in ("fork", "spawn", "forkserver"):
        ctx = mp.get_context(method)
        with ctx.Pool(2) as pool:
            print(method, pool.map(square, range(4)))
        shm = shared_memory.SharedMemory(create=True, size=64)
        lock, value = ctx.Lock(), ctx.Value("i", 0)
        children = [ctx.Process(target=fill, args=(shm.name, lock, value)) for _ in range(2)]
        [c.start() for c in children]
        [c.join() for c in children]
        print(method, "shared", shm.buf[0], value.value, [c.exitcode for c in children])
        shm.close(); shm.unlink()
    with mp.Manager() as m:
        d = m.dict(a=1)
        p = mp.Process(target=d.update, args=({"b": 2},)); p.start(); p.join()
        print("manager", sorted(d.items()))
    with ProcessPoolExecutor(2) as ex:
        print("executor", list(ex.map(square, [5, 6])))

async def loop():
    p = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    out, _ = await p.communicate(b"through cat")
    print("asyncio", out.decode(), p.returncode)
    path = os.path.join(tempfile.mkdtemp(), "s")
    async def serve(r, w):
        w.write((await r.readline()).upper()); await w.drain(); w.close()
    server = await asyncio.start_unix_server(serve, path)
    r, w = await asyncio.open_unix_connection(path)
    w.write(b"unix socket\n")
    print("asyncio", (await r.readline()).decode().strip())
    w.close(); server.close()
    os.unlink(path); os.rmdir(os.path.dirname(path))

def database():
    def connect():
        c = sqlite3.connect("db.sqlite", timeout=30)
        c.execute("pragma journal_mode=wal")
        return c
    connect().execute("create table t(n)")
    def write():
        c = connect()
        for n in range(20):
            with c: c.execute("insert into t values(?)", (n,))
        c.close()
    threads = [threading.Thread(target=write) for _ in range(3)]
    [t.start() for t in threads]; [t.join() for t in threads]
    c = connect()
    print("sqlite", c.execute("select count(*), sum(n) from t").fetchone())
    c.close()

def system():
    pid, fd = pty.fork()
    if pid == 0:
        os.execvp("sh", ["sh", "-c", "test -t 0 && echo a terminal"])
    try: print("pty", os.read(fd, 100).decode().strip())
    finally: os.waitpid(pid, 0)
    m = mmap.mmap(-1, 4096); m[:5] = b"hello"; print("mmap", bytes(m[:5]))
    signal.signal(signal.SIGALRM, lambda *a: print("alarm")); signal.setitimer(signal.ITIMER_REAL, 0.01); signal.pause()
    print("libc", ctypes.CDLL(None).getpid() == os.getpid())
    print("open files", resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 1024)
    print("memfd", os.fstat(os.memfd_create("x")).st_size)
    print("cpus", len(os.sched_getaffinity(0)) == os.cpu_count() or len(os.sched_getaffinity(0)) > 0)
    e = select.epoll(); r, w = os.pipe(); e.register(r, select.EPOLLIN); os.write(w, b"x"); print("epoll", len(e.poll(1)))
    print("localhost", socket.gethostbyname("localhost"))
    print("own name", socket.gethostbyname(socket.gethostname()).startswith("127."))
    print("user", getpass.getuser() != "")
    home = os.path.join(os.path.expanduser("~"), ".config-of-some-tool"); open(home, "w").close(); os.unlink(home); print("home is writable")

if __name__ == "__main__":
    processes(); asyncio.run(loop()); database(); system()
END
	python3 main.py
}
