package filter

import "encoding/binary"

// Command names the program that a command and all it starts carry beside
// Default. Among filters that want to tell a listener the newest is asked, so
// this one, which has the listener, must tell of all that Default tells of.
type Command struct {
	Renames      bool // ask the mover of boxinit about renames
	NoDebug      bool // refuse ptrace and its kind
	NoSubprocess bool // refuse new processes, and programs but the first
	// Untold: refuse without telling anyone, where no listener can be had.
	Untold bool
}

// Nonce stands in a program with NoSubprocess where boxinit puts 128 random
// bits: the fourth and fifth argument of the one execve that is allowed, the
// high word of each first.
var Nonce = [4]uint32{0x6e6f6e63, 0x65206f66, 0x20626f78, 0x696e6974}

// Commands is how many programs there are.
const Commands = 16

// CommandOf is the i-th of them.
func CommandOf(i int) Command {
	return Command{Renames: i&1 != 0, NoDebug: i&2 != 0, NoSubprocess: i&4 != 0, Untold: i&8 != 0}
}

func (c Command) index() int {
	i := 0
	for bit, set := range []bool{c.Renames, c.NoDebug, c.NoSubprocess, c.Untold} {
		if set {
			i |= 1 << bit
		}
	}
	return i
}

// in finds the program in what gen wrote: the lengths of all in instructions,
// then all.
func (c Command) in(programs string) []byte {
	length := func(i int) int { return 8 * int(binary.LittleEndian.Uint16([]byte(programs[2*i:2*i+2]))) }
	start := 2 * Commands
	for i := range c.index() {
		start += length(i)
	}
	return []byte(programs[start : start+length(c.index())])
}
