package plan

import (
	"encoding/binary"
	"os"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// decode reads messages back as boxinit does.
func decode(t interface{ Fatalf(string, ...any) }, messages [][]byte) []Op {
	var ops []Op
	le := binary.LittleEndian
	for _, m := range messages {
		if len(m) > MessageMax || le.Uint32(m) != MessagePlan || int(le.Uint32(m[4:])) != len(m) {
			t.Fatalf("message of %d bytes says kind %d, size %d", len(m), le.Uint32(m), le.Uint32(m[4:]))
		}
		for at := headSize; at < len(m); {
			size := int(le.Uint32(m[at+4:]))
			if size < opSize || size%8 != 0 || at+size > len(m) {
				t.Fatalf("record of %d bytes at %d of %d", size, at, len(m))
			}
			op := Op{Code: Code(le.Uint32(m[at:])), A: le.Uint64(m[at+8:]), B: le.Uint64(m[at+16:]), C: le.Uint64(m[at+24:])}
			op.Raw = m[at+opSize : at+size]
			ops = append(ops, op)
			at += size
		}
	}
	return ops
}

func TestMessagesCarryEveryStep(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringOfN(rapid.RuneFrom([]rune("ab/:,\n\\é")), 0, 3000, -1)
		var p Plan
		for range rapid.IntRange(0, 80).Draw(t, "ops") {
			p.Add(Code(rapid.Uint32Range(1, 35).Draw(t, "code")), rapid.Uint64().Draw(t, "a"), 2, 3, rapid.SliceOfN(word, 0, 5).Draw(t, "strings")...)
		}
		messages, err := p.Messages()
		if err != nil {
			t.Fatal(err)
		}
		ops := decode(t, messages)
		if len(ops) != len(p.Ops) {
			t.Fatalf("%d steps arrived of %d", len(ops), len(p.Ops))
		}
		for i, op := range ops {
			want := p.Ops[i]
			data := strings.Join(append(want.Strings, ""), "\x00")
			if op.Code != want.Code || op.A != want.A || !strings.HasPrefix(string(op.Raw), data) || strings.Trim(string(op.Raw[len(data):]), "\x00") != "" {
				t.Fatalf("step %d arrived as %+v, sent %+v", i, op, want)
			}
		}
	})
}

func TestMessagesRefuse(t *testing.T) {
	var nul, long Plan
	nul.Add(Bind, 0, 0, 0, "/a\x00b", "/c")
	if _, err := nul.Messages(); err == nil || !strings.Contains(err.Error(), "NUL") {
		t.Errorf("a NUL in a path: %v", err)
	}
	long.Add(Bind, 0, 0, 0, strings.Repeat("x", MessageMax))
	if _, err := long.Messages(); err == nil || !strings.Contains(err.Error(), "more than a message holds") {
		t.Errorf("a step that no message holds: %v", err)
	}
}

// Both sides of the protocol number the operations alike.
func TestCodesAgreeWithBoxinit(t *testing.T) {
	source, err := os.ReadFile("../jail/boxinit/boxinit.c")
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?s)enum op_code \{(.*?)\};`).FindSubmatch(source)
	if list == nil {
		t.Fatal("boxinit.c has no enum op_code")
	}
	names := regexp.MustCompile(`OP_\w+`).FindAllString(string(list[1]), -1)
	if len(names) != len(codeNames)-1 {
		t.Fatalf("boxinit knows %d operations, the plan %d", len(names), len(codeNames)-1)
	}
	at := map[string]Code{
		"OP_CGROUP": Cgroup, "OP_FORK": Fork, "OP_ROOT": Root, "OP_BIND": Bind, "OP_OVERLAY": Overlay, "OP_MASK": Mask, "OP_PIVOT": Pivot,
		"OP_IDS": IDs, "OP_DROPCAPS": DropCaps, "OP_LANDLOCK_PATH": LandlockPath, "OP_SECCOMP": Seccomp, "OP_SERVE": Serve, "OP_RAMLAYER": RAMLayer,
		"OP_BOUNDCAPS": BoundCaps, "OP_REBIND": Rebind,
	}
	for i, name := range names {
		if want, ok := at[name]; ok && Code(i+1) != want {
			t.Errorf("%s is %d in boxinit and %d in the plan", name, i+1, want)
		}
		delete(at, name)
	}
	for name := range at {
		t.Errorf("boxinit has no %s", name)
	}
}
