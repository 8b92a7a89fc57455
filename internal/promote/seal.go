package promote

import (
	"bytes"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/zeebo/blake3"

	"hutch/internal/fsat"
)

// Key authenticates what hutch writes into .hutch: a journal is an order to
// move files, and a workspace may come out of an archive, or have been open to
// a box of another tool. It lives in the state directory, which no box sees.
type Key [32]byte

// sealVersion begins the first line of every sealed file; another version is
// refused, not guessed at.
const sealVersion = "hutch-journal/2"

// What is sealed. The kind is part of the code, so that one file cannot be
// passed off as another.
const (
	aJournal = "journal"
	anAfter  = "after"
	anUndo   = "undo"
)

// ErrForeign says that something in .hutch was sealed with another key, or for
// another directory.
var ErrForeign = errors.New("it was written by a hutch with another state directory, belongs to a copy of this workspace, or is forged")

// head is what the first line of a sealed file says.
type head struct {
	Held int64  // bytes of undo data
	Seq  uint64 // puts the transactions of a workspace in order
	Time int64  // nanoseconds since the epoch
}

// authority seals files for one workspace, and tells its own from others.
//
// The code covers the transaction's id, and of the workspace's root the inode
// number and the time of birth: all three stay when the directory is moved, and
// a copy of it, in which the inodes of a journal mean other files, has others.
// The device number is left out, since it changes from boot to boot.
type authority struct {
	key    Key
	ino    uint64
	born   fsat.Time       // zero where the file system does not say
	accept map[string]bool // transactions that are believed whatever their code says
}

// seal encodes v below a line of version, checksum, head and code.
func (a *authority) seal(kind, id string, h head, v any) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	sum := blake3.Sum256(body)
	line := fmt.Sprintf("%s %x %d %d %d", sealVersion, sum, h.Held, h.Seq, h.Time)
	code, err := a.code(kind, id, line)
	if err != nil {
		return nil, err
	}
	return append(fmt.Appendf(nil, "%s %x\n", line, code), body...), nil
}

func (a *authority) code(kind, id, line string) ([]byte, error) {
	h, err := blake3.NewKeyed(a.key[:])
	if err != nil {
		return nil, err
	}
	for _, part := range []string{"hutch .hutch", kind, id, line} {
		_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		_, _ = h.WriteString(part)
	}
	root := binary.BigEndian.AppendUint64(nil, a.ino)
	root = binary.BigEndian.AppendUint64(root, uint64(a.born.Sec))
	root = binary.BigEndian.AppendUint64(root, uint64(a.born.Nsec))
	_, _ = h.Write(root)
	return h.Sum(nil), nil
}

// head reads the first line and checks its code: enough to count by.
func (a *authority) head(kind, id string, data []byte) (h head, sum string, err error) {
	line, _, whole := bytes.Cut(data, []byte("\n"))
	at := bytes.LastIndexByte(line, ' ')
	fields := strings.Fields(string(line))
	if len(fields) > 0 && fields[0] != sealVersion && strings.HasPrefix(fields[0], "hutch-journal/") {
		return h, "", fmt.Errorf("journal of version %q, this hutch knows %s", fields[0], sealVersion)
	}
	if !whole || len(fields) != 6 || fields[0] != sealVersion {
		return h, "", errors.New("journal damaged: its first line is not whole")
	}
	var errs [3]error
	h.Held, errs[0] = strconv.ParseInt(fields[2], 10, 64)
	h.Seq, errs[1] = strconv.ParseUint(fields[3], 10, 64)
	h.Time, errs[2] = strconv.ParseInt(fields[4], 10, 64)
	if err := errors.Join(errs[:]...); err != nil || h.Held < 0 {
		return head{}, "", errors.New("journal damaged: its first line is not whole")
	}
	if a.accept[id] {
		return h, fields[1], nil
	}
	want, err := a.code(kind, id, string(line[:at]))
	if err != nil {
		return head{}, "", err
	}
	code, err := hex.DecodeString(fields[5])
	if err != nil || subtle.ConstantTimeCompare(code, want) != 1 {
		return head{}, fields[1], ErrForeign
	}
	return h, fields[1], nil
}

// unseal checks and decodes what seal wrote. A body that is not whole is told
// apart from a whole one that someone else wrote.
func (a *authority) unseal(kind, id string, data []byte, v any) (head, error) {
	h, sum, err := a.head(kind, id, data)
	if err != nil && !errors.Is(err, ErrForeign) {
		return h, err
	}
	_, body, _ := bytes.Cut(data, []byte("\n"))
	if got := blake3.Sum256(body); hex.EncodeToString(got[:]) != sum {
		return head{}, errors.New("journal damaged: its checksum does not match")
	}
	if err != nil {
		return head{}, err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return head{}, fmt.Errorf("journal damaged: %w", err)
	}
	return h, nil
}

// journal unseals and validates the journal of a transaction.
func (a *authority) journal(id string, data []byte) (*journal, error) {
	j := new(journal)
	var err error
	if j.head, err = a.unseal(aJournal, id, data, j); err != nil {
		return nil, err
	}
	if err := j.validate(id); err != nil {
		return nil, fmt.Errorf("journal refused: %w", err)
	}
	return j, nil
}
