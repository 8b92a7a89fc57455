package model

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// The names are few, so that operations meet, and hold what trips programs up.
var (
	dirNames  = []string{"d", "e", "D", "d"}
	fileNames = []string{"a", "b", "c", "A", "d", "e", "a", "b"}
	oddNames  = []string{strings.Repeat("n", 255), "\xff\xfe", "new\nline", "-rf", " ", "é", "e\u0301"}
	contents  = []string{"", "x", "hello\n", strings.Repeat("0123456789abcdef", 256), strings.Repeat("z", 70_000)}
	modes     = []uint32{0o644, 0o600, 0o755, 0o444, 0o400, 0o775, 0o664, 0o711}
	dirModes  = []uint32{0o755, 0o700, 0o755, 0o775, 0o1775}
	strict    = []uint32{0o000, 0o555, 0o500, 0o111, 0o311, 0o200}
	xattrs0   = []string{"user.a", "user.b", "user.mime_type", "user.overlay.opaque", "user.overlay.redirect"}
)

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func somePath(r *rand.Rand) string {
	path := ""
	for range pick(r, []int{0, 0, 0, 1, 1, 1, 2}) {
		path += pick(r, dirNames) + "/"
	}
	if r.IntN(25) == 0 {
		return path + pick(r, oddNames)
	}
	return path + pick(r, fileNames)
}

func someDir(r *rand.Rand) string {
	path := pick(r, dirNames)
	if r.IntN(2) == 0 {
		path += "/" + pick(r, dirNames)
	}
	return path
}

// longAgo is where explicit times begin; nothing real is so old.
const longAgo = 1_000_000_000_000_000_000

func someTime(r *rand.Rand) int64 { return longAgo + r.Int64N(1<<56) }

// generators make one operation each; the weight is how often.
var generators = []struct {
	weight int
	make   func(r *rand.Rand) Op
}{
	{8, func(r *rand.Rand) Op { return Op{Kind: "write", A: somePath(r), Data: pick(r, contents)} }},
	{3, func(r *rand.Rand) Op { return Op{Kind: "excl", A: somePath(r), Data: pick(r, contents)} }},
	{6, func(r *rand.Rand) Op { return Op{Kind: "append", A: somePath(r), Data: pick(r, contents)} }},
	{3, func(r *rand.Rand) Op {
		return Op{Kind: "pwrite", A: somePath(r), N: r.Int64N(200_000), Data: pick(r, contents)}
	}},
	{3, func(r *rand.Rand) Op { return Op{Kind: "rdwr", A: somePath(r)} }},
	{2, func(r *rand.Rand) Op { return Op{Kind: "ftruncate", A: somePath(r), N: r.Int64N(100_000)} }},
	{2, func(r *rand.Rand) Op { return Op{Kind: "truncate", A: somePath(r), N: r.Int64N(5)} }},
	{1, func(r *rand.Rand) Op {
		return Op{Kind: "sparse", A: somePath(r), N: r.Int64N(64 << 20), Data: pick(r, contents)}
	}},
	{2, func(r *rand.Rand) Op {
		return Op{Kind: "fallocate", A: somePath(r), N: r.Int64N(50_000), M: 1 + r.Int64N(50_000), Mode: pick(r, []uint32{
			0, unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_ZERO_RANGE,
		})}
	}},
	{3, func(r *rand.Rand) Op { return Op{Kind: "mmap", A: somePath(r), Data: pick(r, []string{"m", "mapped"})} }},
	{2, func(r *rand.Rand) Op { return Op{Kind: "read", A: somePath(r)} }},
	{2, func(r *rand.Rand) Op { return Op{Kind: "stat", A: somePath(r)} }},
	{2, func(r *rand.Rand) Op { return Op{Kind: "list", A: someDir(r)} }},
	{1, func(r *rand.Rand) Op { return Op{Kind: "readlink", A: somePath(r)} }},
	{1, func(r *rand.Rand) Op { return Op{Kind: "access", A: somePath(r), Mode: uint32(r.IntN(8))} }},
	{3, func(r *rand.Rand) Op { return Op{Kind: "copyrange", A: somePath(r), B: somePath(r)} }},
	{8, func(r *rand.Rand) Op { return Op{Kind: "mkdir", A: somePath(r), Mode: pick(r, dirModes)} }},
	{3, func(r *rand.Rand) Op { return Op{Kind: "rmdir", A: someDir(r)} }},
	{6, func(r *rand.Rand) Op { return Op{Kind: "unlink", A: somePath(r)} }},
	{9, func(r *rand.Rand) Op { return Op{Kind: "rename", A: somePath(r), B: somePath(r)} }},
	{4, func(r *rand.Rand) Op { return Op{Kind: "rename", A: someDir(r), B: somePath(r)} }},
	{2, func(r *rand.Rand) Op { return Op{Kind: "noreplace", A: somePath(r), B: somePath(r)} }},
	{5, func(r *rand.Rand) Op { return Op{Kind: "exchange", A: somePath(r), B: somePath(r)} }},
	{6, func(r *rand.Rand) Op { return Op{Kind: "link", A: somePath(r), B: somePath(r)} }},
	// None leads out of the tree: there a box is not like the host, and the
	// guard holds the link.
	{5, func(r *rand.Rand) Op {
		return Op{Kind: "symlink", A: pick(r, []string{somePath(r), "nowhere", ".", "d", "no/where/at/all", "\xffodd"}), B: somePath(r)}
	}},
	{1, func(r *rand.Rand) Op {
		p := somePath(r)
		return Op{Kind: "symlink", A: p[strings.LastIndexByte(p, '/')+1:], B: p}
	}}, // a loop
	{5, func(r *rand.Rand) Op { return Op{Kind: "chmod", A: somePath(r), Mode: pick(r, modes)} }},
	{2, func(r *rand.Rand) Op { return Op{Kind: "chmod", A: someDir(r), Mode: pick(r, dirModes)} }},
	{1, func(r *rand.Rand) Op { return Op{Kind: "chmod", A: somePath(r), Mode: pick(r, strict)} }},
	{1, func(r *rand.Rand) Op { return Op{Kind: "chown", A: somePath(r), N: -1, M: -1} }},
	{1, func(r *rand.Rand) Op {
		return Op{Kind: "chown", A: somePath(r), N: pick(r, []int64{-1, 0, 1000, 1001}), M: pick(r, []int64{-1, 0, 1000, 1001})}
	}},
	{5, func(r *rand.Rand) Op { return Op{Kind: "utimes", A: somePath(r), N: someTime(r)} }},
	{4, func(r *rand.Rand) Op {
		return Op{Kind: "setxattr", A: somePath(r), B: pick(r, xattrs0), N: int64(r.IntN(3)), Data: pick(r, []string{"", "1", "y", "/d", strings.Repeat("v", 300)})}
	}},
	{2, func(r *rand.Rand) Op { return Op{Kind: "rmxattr", A: somePath(r), B: pick(r, xattrs0)} }},
	{1, func(r *rand.Rand) Op { return Op{Kind: "getxattr", A: somePath(r), B: pick(r, xattrs0)} }},
	{1, func(r *rand.Rand) Op { return Op{Kind: "mkfifo", A: somePath(r), Mode: 0o644} }},
	{1, func(r *rand.Rand) Op { return Op{Kind: "socket", A: somePath(r)} }},
	{2, func(r *rand.Rand) Op { return Op{Kind: "tmpfile", A: someDir(r), B: somePath(r), Data: "nameless"} }},
	{3, func(r *rand.Rand) Op { return Op{Kind: "rmtree", A: someDir(r)} }},
	{3, func(r *rand.Rand) Op { return Op{Kind: "recreate", A: someDir(r), B: "a", Mode: 0o755, Data: "anew"} }},
	{4, func(r *rand.Rand) Op { return Op{Kind: "resave", A: somePath(r), Data: pick(r, contents)} }},
	{2, func(r *rand.Rand) Op { return Op{Kind: "relink", A: somePath(r), Data: pick(r, contents)} }},
}

func someOps(r *rand.Rand, n int) []Op {
	total := 0
	for _, g := range generators {
		total += g.weight
	}
	ops := make([]Op, 0, n)
	for range n {
		k := r.IntN(total)
		for _, g := range generators {
			if k -= g.weight; k < 0 {
				ops = append(ops, g.make(r))
				break
			}
		}
	}
	return ops
}

// firstTree makes the tree that a sequence begins with: something of each kind.
func firstTree(r *rand.Rand, gentle bool) []Op {
	mk := func(kind, a, b string) Op { return Op{Kind: kind, A: a, B: b, Mode: 0o755, Data: a} }
	ops := []Op{
		mk("mkdir", "d", ""), mk("mkdir", "d/d", ""), mk("mkdir", "d/e", ""), mk("mkdir", "e", ""), mk("mkdir", "e/d", ""), mk("mkdir", "D", ""), mk("mkdir", "D/e", ""),
		mk("write", "a", ""), mk("write", "d/a", ""), mk("write", "d/b", ""), mk("write", "d/d/a", ""), mk("write", "d/e/b", ""),
		mk("write", "e/a", ""), mk("write", "e/d/c", ""), mk("write", "D/A", ""), mk("write", "D/e/"+oddNames[0], ""), mk("write", "e/\xff\xfe", ""),
		mk("symlink", "a", "c"), mk("symlink", "d", "e/c"), mk("symlink", "nowhere", "d/c"), mk("symlink", "no/where/at/all", "D/c"),
		{Kind: "setxattr", A: "a", B: "user.a", Data: "first"}, {Kind: "setxattr", A: "d", B: "user.b", Data: "of a directory"},
		{Kind: "sparse", A: "D/a", N: 50 << 20, Data: "data"},
		{Kind: "chmod", A: "d/a", Mode: 0o755}, {Kind: "chmod", A: "e/a", Mode: 0o444},
	}
	ops = append(ops, mk("link", "d/b", "b"), mk("link", "d/b", "e/b"), mk("link", "e/a", "D/b"))
	ops = append(ops, someOps(r, 25)...)
	if !gentle {
		// An overlay parts the names of a file of the workspace when one
		// is written to (index=off), so it begins with none that has two.
		ops = slices.DeleteFunc(ops, func(op Op) bool { return op.Kind == "link" })
	}
	if gentle {
		ops = append(ops, Op{Kind: "soften", A: "."})
	} else {
		ops = append(ops, Op{Kind: "mkdir", A: "e/locked", Mode: 0o755}, Op{Kind: "write", A: "e/locked/a", Data: "in"}, Op{Kind: "chmod", A: "e/locked", Mode: pick(r, strict)})
	}
	return ops
}

// Mode is what becomes of a box.
type Mode string

// The modes. Each of those after Kept leaves the workspace as it was.
const (
	Commit    Mode = "commit"
	KeepTimes Mode = "commit with --mtime=keep"
	Kept      Mode = "preserve, then commit"
	Undone    Mode = "commit, then undo"
	Discard   Mode = "discard"
	Fail      Mode = "exit 3"
	Timeout   Mode = "timeout"
	Memory    Mode = "memory"
	TooDeep   Mode = "commit, beyond PATH_MAX"
)

func (m Mode) promotes() bool { return m == Commit || m == KeepTimes || m == Kept }

// Case is a sequence of boxes on one workspace.
type Case struct {
	First []Op
	Owner int // of the workspace, in tests that root runs; the box runs as him
	Boxes []Box
}

// Box is one of them.
type Box struct {
	Mode Mode
	Ops  []Op
}

func (c Case) String() string {
	var out strings.Builder
	list := func(name string, ops []Op) {
		fmt.Fprintf(&out, "%s []Op{\n", name)
		for _, op := range ops {
			fmt.Fprintf(&out, "\t%v\n", op)
		}
		out.WriteString("}\n")
	}
	fmt.Fprintf(&out, "Owner: %d\n", c.Owner)
	list("First:", c.First)
	for _, b := range c.Boxes {
		list(fmt.Sprintf("Box %q:", b.Mode), b.Ops)
	}
	return out.String()
}

// someCase makes a case. A gentle one leaves nothing that its owner may not
// read, except in the end.
func someCase(r *rand.Rand, owners []int, gentle bool) Case {
	c := Case{Owner: pick(r, owners), First: firstTree(r, gentle)}
	boxes := 2 + r.IntN(3)
	for i := range boxes {
		b := Box{Mode: pick(r, []Mode{Commit, Commit, Commit, KeepTimes, Kept, Undone, Discard, Fail}), Ops: someOps(r, 30+r.IntN(70))}
		switch r.IntN(30) {
		case 0:
			b.Mode = Timeout
		case 1:
			b.Mode = Memory
		case 2:
			b.Mode = TooDeep
			b.Ops = append(b.Ops, Op{Kind: "deep", A: ".", N: 45, M: 200, Data: "deep"})
		}
		if r.IntN(10) == 0 {
			b.Ops = append(b.Ops, Op{Kind: "deep", A: someDir(r), N: 15 + r.Int64N(20), M: 200, Data: "deep"})
		}
		if last := i == boxes-1; !gentle && !last && b.Mode != Undone {
			b.Ops = slices.DeleteFunc(b.Ops, func(op Op) bool { return op.Kind == "link" })
		}
		if gentle && i < boxes-1 {
			b.Ops = append(b.Ops, Op{Kind: "soften", A: "."})
		}
		c.Boxes = append(c.Boxes, b)
	}
	return c
}
