package changeset

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// file is what stands at one path of one tree.
type file struct {
	root *root
	path string
	stat fsat.Stat

	// content and contentPath say where the bytes of a regular file lie:
	// elsewhere than the file when overlayfs copied up only its metadata.
	content     *root
	contentPath string
	// lower is the path in the workspace of what overlayfs merges with a file
	// of the layer by name; "" for nothing.
	lower string
	fresh bool // of the layer, where the workspace has nothing

	// load fills these.
	target     string
	digest     string
	xattrs     map[string][]byte
	origin     bool // overlayfs copied it up
	unreadable bool // its owner may not read it, and it is not ours to change; or it was replaced as we came to it
}

// plain reports whether f is a regular file or nothing at all.
func (f *file) plain() bool { return f == nil || f.stat.Type == fsat.Regular }

func (f *file) isDir() bool { return f != nil && f.stat.Type == fsat.Directory }

func (f *file) size() int64 {
	if f.stat.Type != fsat.Regular {
		return 0
	}
	return f.stat.Size
}

func (f *file) state() *State {
	if f == nil {
		return nil
	}
	return &State{
		Type:   f.stat.Type,
		Mode:   f.stat.Mode,
		UID:    f.stat.UID,
		GID:    f.stat.GID,
		Size:   f.size(),
		Target: f.target,
		Digest: f.digest,
		Mtime:  f.stat.Mtime,
		Xattrs: f.xattrs,
	}
}

// load looks into every file that a change names, on all CPUs.
func (r *reader) load() error {
	loaded := map[*file]bool{}
	var files []*file
	var bytes int64
	for i := range r.changes {
		for _, f := range []*file{r.changes[i].before, r.changes[i].after} {
			if f != nil && !loaded[f] {
				loaded[f] = true
				files = append(files, f)
				bytes += f.size()
			}
		}
	}

	var (
		next    atomic.Int64
		workers sync.WaitGroup
		once    sync.Once
		failed  error
	)
	work := func() {
		buf := buffers.Get().(*[]byte)
		defer buffers.Put(buf)
		for {
			i := int(next.Add(1)) - 1
			if i >= len(files) {
				return
			}
			if err := r.loadFile(files[i], *buf); err != nil {
				once.Do(func() { failed = err })
				next.Store(int64(len(files)))
				return
			}
		}
	}
	if bytes < 1<<20 && len(files) < 100 {
		work() // done before another goroutine would have started
		return failed
	}
	for range runtime.NumCPU() {
		workers.Go(work)
	}
	workers.Wait()
	return failed
}

// readSize is enough for the hash to use its widest instructions.
const readSize = 256 << 10

var buffers = sync.Pool{New: func() any {
	buf := make([]byte, readSize)
	return &buf
}}

func (r *reader) loadFile(f *file, buf []byte) error {
	switch f.stat.Type {
	case fsat.Symlink:
		var err error
		f.target, err = fsat.Readlink(f.root.fd, f.path)
		if f.root.name == Workspace && (absent(err) || errors.Is(err, unix.EINVAL)) {
			f.unreadable = true
			return nil
		}
		return err
	case fsat.Directory, fsat.Regular:
	default:
		return nil
	}
	open := f.root.openFile
	if f.isDir() {
		open = f.root.openDir
	}
	fd, err := open(f.path)
	if f.root.name == Workspace && (errors.Is(err, unix.EACCES) || absent(err)) {
		f.unreadable = true
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if st, err := fsat.Fstat(fd); err != nil {
		return err
	} else if st.Type != f.stat.Type || st.Ino != f.stat.Ino || st.Dev != f.stat.Dev {
		if f.root.name == Workspace {
			// Its user saves files as we read. What to make of that is
			// for the promotion to say, which looks again.
			f.unreadable = true
			return nil
		}
		return fmt.Errorf("%q was replaced while it was read", f.path)
	}
	if f.xattrs, err = userXattrs(fd); err != nil {
		return err
	}
	if f.fresh && r.src.Form == Overlay {
		if _, f.origin, err = fsat.Xattr(fd, r.src.XattrPrefix+"origin"); err != nil {
			return err
		}
	}
	if f.isDir() {
		return nil
	}
	if f.root.name == Layer && r.trusted() {
		_, meta, err := fsat.Xattr(fd, trustedPrefix+"metacopy")
		if err != nil {
			return err
		}
		if meta {
			return r.loadMetacopy(f, fd, buf)
		}
	}
	f.digest, err = hashFile(fd, buf)
	return err
}

// loadMetacopy reads the content where overlayfs left it: a file of which only
// the metadata was copied up is full of zeros in the layer.
func (r *reader) loadMetacopy(f *file, fd int, buf []byte) error {
	lower, _, err := redirected(fd, trustedPrefix, f.lower)
	if err != nil {
		return fmt.Errorf("%q: %w", f.path, err)
	}
	if lower == "" {
		return fmt.Errorf("%q has its content in a file of the workspace that cannot be found", f.path)
	}
	content, err := r.host.openFile(lower)
	if err != nil {
		return err
	}
	defer unix.Close(content)
	st, err := fsat.Fstat(content)
	if err != nil {
		return err
	}
	if st.Type != fsat.Regular || st.Size != f.stat.Size {
		return fmt.Errorf("%q has its content in %q, which changed in the workspace", f.path, lower)
	}
	f.content, f.contentPath = r.host, lower
	f.digest, err = hashFile(content, buf)
	return err
}

func hashFile(fd int, buf []byte) (string, error) {
	h := blake3.New()
	if sparse, err := isSparse(fd); err != nil {
		return "", err
	} else if sparse {
		return hashSparse(h, fd, buf)
	}
	return hashDense(h, fd, buf)
}

// DigestAs hashes an open file in the way that the digest like was made.
func DigestAs(fd int, like string) (string, error) {
	if strings.HasPrefix(like, sparseTag) {
		return hashSparse(blake3.New(), fd, make([]byte, readSize))
	}
	return hashDense(blake3.New(), fd, make([]byte, readSize))
}

func hashDense(h *blake3.Hasher, fd int, buf []byte) (string, error) {
	for {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("read content: %w", err)
		}
		if n == 0 {
			return formatDigest(h), nil
		}
		h.Write(buf[:n])
	}
}

// agree gives both sides of a change the same kind of digest where their sizes
// are equal: of two equal files one may be sparse. The other one is not, so its
// length is no longer free.
func (r *reader) agree(ch *change) error {
	if ch.before == nil || ch.after == nil || ch.before.size() != ch.after.size() || ch.before.digest == "" || ch.after.digest == "" {
		return nil
	}
	sparse := ch.after
	if strings.HasPrefix(ch.before.digest, sparseTag) {
		sparse = ch.before
	}
	if strings.HasPrefix(ch.before.digest, sparseTag) == strings.HasPrefix(ch.after.digest, sparseTag) {
		return nil
	}
	fd, err := sparse.root.openFile(sparse.path)
	if sparse.root.name == Workspace && absent(err) {
		sparse.unreadable, sparse.digest = true, ""
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	sparse.digest, err = hashDense(blake3.New(), fd, make([]byte, readSize))
	return err
}

// A file this large of which less than an eighth is there is sparse.
const (
	sparseSize  = 64 << 20
	sparseRatio = 8
)

func isSparse(fd int) (bool, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, fmt.Errorf("read content: %w", err)
	}
	return st.Size >= sparseSize && st.Blocks*512 < st.Size/sparseRatio, nil
}

// hashSparse hashes the size, and every stretch of data with its place, in
// blocks: how a file system joins stretches must not show.
func hashSparse(h *blake3.Hasher, fd int, buf []byte) (string, error) {
	fail := func(err error) (string, error) { return "", fmt.Errorf("read content: %w", err) }
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fail(err)
	}
	number := func(n int64) { h.Write(binary.LittleEndian.AppendUint64(nil, uint64(n))) }
	number(st.Size)
	const block = 4 << 10
	for at := int64(0); at < st.Size; {
		data, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return fail(err)
		}
		hole, err := unix.Seek(fd, data, unix.SEEK_HOLE)
		if err != nil {
			return fail(err)
		}
		for data -= data % block; data < hole; data += block {
			n, err := unix.Pread(fd, buf[:block], data)
			if errors.Is(err, unix.EINTR) {
				data -= block
				continue
			}
			if err != nil {
				return fail(err)
			}
			if len(bytes.Trim(buf[:n], "\x00")) == 0 { // zeros that are written are as good as a hole
				continue
			}
			number(data)
			h.Write(buf[:n])
		}
		at = max(hole, data)
	}
	return formatTagged(sparseTag, h), nil
}

// userXattrs returns the user.* attributes of an open file, without those that
// overlayfs would believe of a lower directory, or those that it escaped.
func userXattrs(fd int) (map[string][]byte, error) {
	names, err := fsat.Xattrs(fd)
	if err != nil {
		return nil, err
	}
	var xattrs map[string][]byte
	for _, name := range names {
		if !strings.HasPrefix(name, "user.") || strings.HasPrefix(name, userPrefix) {
			continue
		}
		value, ok, err := fsat.Xattr(fd, name)
		if err != nil {
			return nil, err
		}
		if ok {
			if xattrs == nil {
				xattrs = map[string][]byte{}
			}
			xattrs[name] = value
		}
	}
	return xattrs, nil
}
