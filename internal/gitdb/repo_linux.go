package gitdb

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

var errMisnamed = corrupt("its content is not what its name says")

// Bounds. Git makes deltas at most 4095 deep.
const (
	maxObject = 128 << 20 // bytes of any object, inflated
	maxMeta   = 64 << 20  // bytes of a commit, tree or tag
	maxDepth  = 4096
	maxPacks  = 4096
	maxConfig = 1 << 20
	// budget is what one Repo may inflate and copy, in bytes; each object
	// costs minCost at least. It stops trees that hold one another a million
	// times, and chains of deltas that double what they make.
	budget  = 16 << 30
	minCost = 1 << 10
)

// Repo reads the objects, refs and index of one repository. It is for one
// goroutine at a time.
type Repo struct {
	view       view
	format     Format
	packs      []*pack
	known      map[string]bool // names of packs
	alternates bool
	budget     int64
	inflate    io.ReadCloser // a zlib.Resetter, kept for its memory
	cache      baseCache
}

// Open reads the repository that the directories make as one, the first on top:
// a git directory alone, a box's layer of it over the host's, or a linked
// worktree's over the common one. The caller closes the Repo; the descriptors
// stay its own.
func Open(dirs ...Dir) (*Repo, error) {
	r := &Repo{format: SHA1, known: map[string]bool{}, budget: budget}
	if err := r.open(dirs); err != nil {
		r.Close()
		return nil, fmt.Errorf("read git repository: %w", err)
	}
	return r, nil
}

func (r *Repo) open(dirs []Dir) error {
	for _, d := range dirs {
		fd, err := fsat.OpenDir(d.FD, ".")
		if err != nil {
			return err
		}
		r.view = append(r.view, Dir{fd, d.Overlay})
	}
	config, err := r.view.read("config", maxConfig)
	if err != nil {
		return err
	}
	switch format := extension(config, "objectformat"); format {
	case "", "sha1":
	case "sha256":
		r.format = SHA256
	default:
		return fmt.Errorf("%w: objects named by %.20q", ErrUnsupported, format)
	}
	reftable, err := r.view.list("reftable")
	if err != nil {
		return err
	}
	if refs := extension(config, "refstorage"); len(reftable) > 0 || (refs != "" && refs != "files") {
		return fmt.Errorf("%w: its refs are kept as a reftable; git refs migrate --ref-format=files makes files of them", ErrUnsupported)
	}
	borrowed, err := r.view.read("objects/info/alternates", maxConfig)
	if err != nil {
		return err
	}
	r.alternates = len(bytes.TrimSpace(borrowed)) > 0
	return r.openPacks()
}

// Close closes what Open opened.
func (r *Repo) Close() {
	for _, p := range r.packs {
		p.close()
	}
	for _, d := range r.view {
		unix.Close(d.FD)
	}
	r.packs, r.view = nil, nil
}

// Format returns the hash that names the objects.
func (r *Repo) Format() Format { return r.format }

// Alternates reports whether the repository borrows objects from another one.
// Those are not read.
func (r *Repo) Alternates() bool { return r.alternates }

// File returns a file of the git directory of at most limit bytes, and nil when
// there is none.
func (r *Repo) File(path string, limit int64) ([]byte, error) { return r.view.read(path, limit) }

// openPacks opens the packs not known yet.
func (r *Repo) openPacks() error {
	entries, err := r.view.list("objects/pack")
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name, ".idx")
		if !ok || r.known[name] {
			continue
		}
		if len(r.packs) == maxPacks {
			return fmt.Errorf("%w: more than %d packs; git gc makes fewer", ErrTooLarge, maxPacks)
		}
		p, err := openPack(r.view, name, r.format)
		if err != nil {
			return err
		}
		if p != nil {
			r.known[name] = true
			r.packs = append(r.packs, p)
		}
	}
	return nil
}

// Object returns an object of at most limit bytes whose content has that name.
// Replacements (refs/replace) are not applied. The content may be shared: it must
// not be changed.
func (r *Repo) Object(id OID, limit int64) (Kind, []byte, error) {
	kind, content, err := r.object(id, min(limit, maxObject))
	if err != nil {
		return 0, nil, fmt.Errorf("git object %v: %w", id, err)
	}
	return kind, content, nil
}

func (r *Repo) object(id OID, limit int64) (Kind, []byte, error) {
	if len(id) != int(r.format) {
		return 0, nil, corrupt("a name of %d bytes in a repository of names of %d", len(id), r.format)
	}
	for attempt := 0; ; attempt++ {
		kind, content, err := r.loose(r.view, id, limit)
		if errors.Is(err, unix.ENOENT) {
			kind, content, err = r.packed(id, limit)
		}
		if errors.Is(err, ErrNotFound) && attempt == 0 {
			// git may just have packed it.
			if err := r.openPacks(); err != nil {
				return 0, nil, err
			}
			continue
		}
		if errors.Is(err, ErrNotFound) && r.alternates {
			err = fmt.Errorf("%w; %w", err, ErrAlternates)
		}
		if err == nil && r.format.Name(kind, content) != id {
			err = errMisnamed
		}
		return kind, content, err
	}
}

// Blob returns the content of a blob of at most limit bytes.
func (r *Repo) Blob(id OID, limit int64) ([]byte, error) { return r.want(id, Blob, limit) }

// Commit returns what a commit points to.
func (r *Repo) Commit(id OID) (CommitInfo, error) {
	content, err := r.want(id, Commit, maxMeta)
	if err != nil {
		return CommitInfo{}, err
	}
	c, err := parseCommit(r.format, content)
	if err != nil {
		return CommitInfo{}, fmt.Errorf("git object %v: %w", id, err)
	}
	return c, nil
}

// Tree returns the entries of a tree in git's order.
func (r *Repo) Tree(id OID) ([]TreeEntry, error) {
	content, err := r.want(id, Tree, maxMeta)
	if err != nil {
		return nil, err
	}
	entries, err := parseTree(r.format, content)
	if err != nil {
		return nil, fmt.Errorf("git object %v: %w", id, err)
	}
	return entries, nil
}

func (r *Repo) want(id OID, want Kind, limit int64) ([]byte, error) {
	kind, content, err := r.Object(id, limit)
	if err == nil && kind != want {
		err = fmt.Errorf("git object %v: %w", id, corrupt("a %v where there should be a %v", kind, want))
	}
	return content, err
}

// Peel follows tags and returns the object at their end, which must be of the kind
// that they say.
func (r *Repo) Peel(id OID) (OID, Kind, error) {
	const longest = 100 // tags of tags
	said := Kind(0)
	for range longest {
		kind, content, err := r.Object(id, maxObject)
		if err != nil {
			return "", 0, err
		}
		if said != 0 && kind != said {
			return "", 0, fmt.Errorf("git object %v: %w", id, corrupt("a %v that a tag calls a %v", kind, said))
		}
		if kind != Tag {
			return id, kind, nil
		}
		if id, said, err = parseTag(r.format, content); err != nil {
			return "", 0, fmt.Errorf("git tag: %w", err)
		}
	}
	return "", 0, fmt.Errorf("git object %v: %w", id, corrupt("a tag of too many tags"))
}

// TreeOf returns the tree of a commit or tag, or of a tree itself; "" of a blob.
func (r *Repo) TreeOf(id OID) (OID, error) {
	id, kind, err := r.Peel(id)
	switch {
	case err != nil:
		return "", err
	case kind == Commit:
		c, err := r.Commit(id)
		return c.Tree, err
	case kind == Tree:
		return id, nil
	}
	return "", nil
}

// FileIn returns the entry of a path in a tree; false when there is none.
func (r *Repo) FileIn(tree OID, path string) (TreeEntry, bool, error) {
	e := TreeEntry{Mode: ModeTree, ID: tree}
	for name := range strings.SplitSeq(path, "/") {
		if !e.isTree() {
			return TreeEntry{}, false, nil
		}
		entries, err := r.Tree(e.ID)
		if err != nil {
			return TreeEntry{}, false, err
		}
		i := slices.IndexFunc(entries, func(e TreeEntry) bool { return e.Name == name })
		if i < 0 {
			return TreeEntry{}, false, nil
		}
		e = entries[i]
	}
	return e, true, nil
}

// Head returns the commit that HEAD leads to; "" on an unborn branch.
func (r *Repo) Head() (OID, error) {
	refs, err := r.Refs()
	if err != nil {
		return "", err
	}
	i, ok := slices.BinarySearchFunc(refs, "HEAD", func(ref Ref, name string) int { return strings.Compare(ref.Name, name) })
	if !ok {
		return "", nil
	}
	return refs[i].ID, nil
}

// spend takes n bytes from the budget.
func (r *Repo) spend(n int64) error {
	r.budget -= max(n, minCost)
	if r.budget < 0 {
		return fmt.Errorf("%w: more than %d GiB read", ErrTooLarge, int64(budget)>>30)
	}
	return nil
}

// inflateFrom returns a reader of the zlib stream at the start of src.
func (r *Repo) inflateFrom(src io.Reader) (io.Reader, error) {
	buf := bufio.NewReader(src)
	var err error
	if r.inflate == nil {
		r.inflate, err = zlib.NewReader(buf)
	} else {
		err = r.inflate.(zlib.Resetter).Reset(buf, nil)
	}
	if err != nil {
		return nil, corrupt("zlib: %v", err)
	}
	return r.inflate, nil
}

// inflateExactly reads size bytes and the end of the stream, whose checksum is
// checked there.
func (r *Repo) inflateExactly(z io.Reader, size int64) ([]byte, error) {
	if err := r.spend(size); err != nil {
		return nil, err
	}
	// What a stream claims to hold is not reserved before it comes.
	buf := bytes.NewBuffer(make([]byte, 0, min(size, 64<<10)+bytes.MinRead))
	if _, err := io.Copy(buf, io.LimitReader(z, size+1)); err != nil {
		return nil, corrupt("zlib: %v", err)
	}
	if int64(buf.Len()) != size {
		return nil, corrupt("%d bytes or more where %d are announced", buf.Len(), size)
	}
	return buf.Bytes(), nil
}

// loose reads a loose object; ENOENT when there is none.
func (r *Repo) loose(v view, id OID, limit int64) (Kind, []byte, error) {
	name := id.String()
	f, _, err := v.open("objects/" + name[:2] + "/" + name[2:])
	if err != nil {
		return 0, nil, err
	}
	defer f.Close()
	z, err := r.inflateFrom(f)
	if err != nil {
		return 0, nil, err
	}
	var header []byte
	for one := make([]byte, 1); ; {
		if _, err := io.ReadFull(z, one); err != nil || len(header) > 32 {
			return 0, nil, corrupt("header of a loose object")
		}
		if one[0] == 0 {
			break
		}
		header = append(header, one[0])
	}
	kind, size, err := parseLooseHeader(string(header))
	if err != nil {
		return 0, nil, err
	}
	if size > limit {
		return 0, nil, fmt.Errorf("%w: %d bytes", ErrTooLarge, size)
	}
	content, err := r.inflateExactly(z, size)
	return kind, content, err
}

func (r *Repo) packed(id OID, limit int64) (Kind, []byte, error) {
	for _, p := range r.packs {
		off, ok, err := p.find(id)
		if err != nil {
			return 0, nil, err
		}
		if ok {
			return r.unpack(p, off, limit)
		}
	}
	return 0, nil, ErrNotFound
}

// unpack reads the object at off, following its deltas down to a whole object
// and then applying them on the way up, one in memory at a time.
func (r *Repo) unpack(p *pack, off, limit int64) (Kind, []byte, error) {
	type step struct {
		off int64
		e   packEntry
	}
	var chain []step
	var kind Kind
	var content []byte
	for content == nil {
		if base, ok := r.cache.get(p, off); ok {
			kind, content = base.kind, base.content
			break
		}
		e, err := p.entry(off)
		if err != nil {
			return 0, nil, err
		}
		bound := int64(maxObject)
		if len(chain) == 0 {
			bound = limit
		}
		switch e.kind {
		case ofsDelta, refDelta:
			chain = append(chain, step{off, e})
			if len(chain) > maxDepth {
				return 0, nil, fmt.Errorf("%w: deltas more than %d deep", ErrTooLarge, maxDepth)
			}
			if off, err = p.base(off, e); err != nil {
				return 0, nil, err
			}
			continue
		}
		if e.size > bound {
			return 0, nil, fmt.Errorf("%w: %d bytes", ErrTooLarge, e.size)
		}
		kind = e.kind
		if content, err = r.inflateEntry(p, off, e); err != nil {
			return 0, nil, err
		}
		r.cache.put(p, off, kind, content)
	}
	for i := len(chain) - 1; i >= 0; i-- {
		delta, err := r.inflateEntry(p, chain[i].off, chain[i].e)
		if err != nil {
			return 0, nil, err
		}
		_, size, _, err := deltaSizes(delta)
		if err != nil {
			return 0, nil, err
		}
		if err := r.spend(size); err != nil {
			return 0, nil, err
		}
		if content, err = applyDelta(content, delta, maxObject); err != nil {
			return 0, nil, err
		}
		r.cache.put(p, chain[i].off, kind, content)
	}
	if int64(len(content)) > limit {
		return 0, nil, fmt.Errorf("%w: %d bytes", ErrTooLarge, len(content))
	}
	return kind, content, nil
}

func (p *pack) base(off int64, e packEntry) (int64, error) {
	if e.kind == ofsDelta {
		if e.back <= 0 || e.back > off {
			return 0, corrupt("delta: base outside of its pack")
		}
		return off - e.back, nil
	}
	base, ok, err := p.find(e.base)
	if err == nil && !ok {
		err = corrupt("delta: base %v is not in its pack", e.base)
	}
	return base, err
}

func (r *Repo) inflateEntry(p *pack, off int64, e packEntry) ([]byte, error) {
	if e.size > maxObject {
		return nil, fmt.Errorf("%w: %d bytes", ErrTooLarge, e.size)
	}
	start := off + int64(e.headLen)
	z, err := r.inflateFrom(io.NewSectionReader(p.data, start, p.size-start))
	if err != nil {
		return nil, err
	}
	return r.inflateExactly(z, e.size)
}

// baseCache keeps some objects of packs: deltas share their bases.
type baseCache struct {
	objects map[place]cached
	size    int
}

type place struct {
	pack *pack
	off  int64
}

type cached struct {
	kind    Kind
	content []byte
}

const (
	cacheSize    = 32 << 20
	cachedObject = 1 << 20
)

func (c *baseCache) get(p *pack, off int64) (cached, bool) {
	o, ok := c.objects[place{p, off}]
	return o, ok
}

func (c *baseCache) put(p *pack, off int64, kind Kind, content []byte) {
	if len(content) > cachedObject {
		return
	}
	if c.objects == nil || c.size+len(content) > cacheSize {
		c.objects, c.size = map[place]cached{}, 0
	}
	c.objects[place{p, off}] = cached{kind, content}
	c.size += len(content) + 100
}

// extension returns the last value of extensions.KEY in a git config: enough for
// what git itself writes there.
func extension(config []byte, key string) string {
	section, value := "", ""
	for line := range strings.Lines(string(config)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = strings.ToLower(line)
			continue
		}
		name, text, ok := strings.Cut(line, "=")
		if ok && section == "[extensions]" && strings.EqualFold(strings.TrimSpace(name), key) {
			value = strings.ToLower(strings.Trim(strings.TrimSpace(text), `"`))
		}
	}
	return value
}
