package gitdb

// deltaSizes reads the two sizes at the head of a delta: of what it applies to,
// and of what it makes.
func deltaSizes(delta []byte) (source, result int64, rest []byte, err error) {
	read := func() (n int64) {
		for shift := 0; ; shift += 7 {
			if len(delta) == 0 || shift > 56 {
				err = corrupt("delta: size")
				return 0
			}
			b := delta[0]
			delta = delta[1:]
			n |= int64(b&0x7f) << shift
			if b&0x80 == 0 {
				return n
			}
		}
	}
	source, result = read(), read()
	return source, result, delta, err
}

// applyDelta makes an object from base and a delta (gitformat-pack(5)).
func applyDelta(base, delta []byte, limit int64) ([]byte, error) {
	source, size, ops, err := deltaSizes(delta)
	if err != nil {
		return nil, err
	}
	if source != int64(len(base)) {
		return nil, corrupt("delta: for a base of %d bytes, not %d", source, len(base))
	}
	if size > limit {
		return nil, ErrTooLarge
	}
	// The size is only claimed: a small delta must not reserve much at once.
	out := make([]byte, 0, min(size, int64(len(base)+len(delta))))
	for len(ops) > 0 {
		op := ops[0]
		ops = ops[1:]
		var from []byte
		switch {
		case op&0x80 != 0:
			var arg [7]byte // four bytes of offset, three of length
			for i := range arg {
				if op&(1<<i) == 0 {
					continue
				}
				if len(ops) == 0 {
					return nil, corrupt("delta: cut short")
				}
				arg[i] = ops[0]
				ops = ops[1:]
			}
			start := int64(arg[0]) | int64(arg[1])<<8 | int64(arg[2])<<16 | int64(arg[3])<<24
			n := int64(arg[4]) | int64(arg[5])<<8 | int64(arg[6])<<16
			if n == 0 {
				n = 0x10000
			}
			if start+n > int64(len(base)) {
				return nil, corrupt("delta: copies from beyond its base")
			}
			from = base[start : start+n]
		case op != 0:
			if len(ops) < int(op) {
				return nil, corrupt("delta: cut short")
			}
			from, ops = ops[:op], ops[op:]
		default:
			return nil, corrupt("delta: operation 0")
		}
		if int64(len(out)+len(from)) > size {
			return nil, corrupt("delta: makes more than it says")
		}
		out = append(out, from...)
	}
	if int64(len(out)) != size {
		return nil, corrupt("delta: makes less than it says")
	}
	return out, nil
}
