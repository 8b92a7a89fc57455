package guard

import (
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
	"hutch/internal/gitdb"
)

// delivered judges what git would put into the work tree later: a box can
// commit a file, or stage or stash it, and restore the tree. So what each moved
// ref, new stash and changed index entry would deliver is held against the same
// table. What lies in the work tree already, with the same content, is judged
// there.
func (d *descriptors) delivered(j *judge) error {
	touched := map[string][]string{} // by git directory, paths in it
	var dirs []string
	for i := range j.entries {
		e := &j.entries[i]
		if e.IsDir() {
			continue
		}
		dir, rest, found := j.inGitDir(e.Path)
		if !found || !delivers(rest) {
			continue
		}
		if touched[dir] == nil {
			dirs = append(dirs, dir)
		}
		touched[dir] = append(touched[dir], rest)
	}
	for _, dir := range dirs {
		if err := d.deliveredBy(j, dir, touched[dir]); err != nil {
			return err
		}
	}
	return nil
}

// delivers reports whether a file of a git directory says what is checked out,
// or is part of it.
func delivers(path string) bool {
	first, _, deep := strings.Cut(path, "/")
	switch first {
	case "objects", "refs", "worktrees", "reftable", "rebase-merge", "rebase-apply", "sequencer":
		return deep
	case "packed-refs", "index":
		return !deep
	}
	return !deep && strings.HasSuffix(first, "HEAD") || path == "logs/refs/stash" || path == "info/grafts"
}

// inGitDir returns the innermost git directory that a path lies in, and the path
// in it.
func (j *judge) inGitDir(path string) (dir, rest string, found bool) {
	for at := 0; at < len(path); at++ {
		next := strings.IndexByte(path[at:], '/')
		if next < 0 {
			break
		}
		at += next
		if head := path[:at]; gitDirNames.has(firstName(path[at+1:])) || strings.HasSuffix(head, ".git") {
			// A linked worktree's is read with the one it belongs to.
			if _, linked := j.merged(head + "/commondir"); !linked && j.isGitDir(head) {
				dir, rest, found = head, path[at+1:], true
			}
		}
	}
	return dir, rest, found
}

func firstName(path string) string {
	name, _, _ := strings.Cut(path, "/")
	return fold(name)
}

// repository is one git directory before and after the promotion.
type repository struct {
	d        *descriptors
	j        *judge
	dir      string // path in the workspace
	old, new *gitdb.Repo
	work     string // the work tree's path in the workspace, with a final slash unless it is the top
	hasWork  bool
	base     gitdb.OID // the tree of the host's HEAD, "" for none
	oldRefs  map[string]gitdb.OID
	judged   map[[2]gitdb.OID]bool
}

func (d *descriptors) deliveredBy(j *judge, dir string, touched []string) error {
	open := func(top int) (int, error) {
		fd, err := fsat.OpenDir(top, dir)
		if err != nil && absent(err) {
			return -1, nil
		}
		return fd, err
	}
	host, err := open(d.workspace)
	if err != nil {
		return err
	}
	layer, err := open(d.layer)
	if err != nil {
		return err
	}
	defer func() {
		for _, fd := range []int{host, layer} {
			if fd >= 0 {
				unix.Close(fd)
			}
		}
	}()
	r := &repository{d: d, j: j, dir: dir, oldRefs: map[string]gitdb.OID{}, judged: map[[2]gitdb.OID]bool{}}
	if parent, name := fsat.Split(dir); name == ".git" {
		r.hasWork = true
		if parent != "." {
			r.work = parent + "/"
		}
	}
	var after []gitdb.Dir
	if layer >= 0 {
		after = append(after, gitdb.Dir{FD: layer, Overlay: j.Overlay})
	}
	if host >= 0 && (layer < 0 || j.Overlay != "") {
		after = append(after, gitdb.Dir{FD: host})
	}
	r.new, err = gitdb.Open(after...)
	if err != nil {
		r.unread(touched[0], err)
		return nil
	}
	defer r.new.Close()
	if host >= 0 {
		if old, err := gitdb.Open(gitdb.Dir{FD: host}); err == nil {
			r.old = old
			defer old.Close()
		}
	}
	if err := r.verify(touched); err != nil {
		return nil // what cannot be read was reported, and nothing more can be said
	}
	r.refs()
	r.stash()
	r.index()
	for _, path := range touched {
		r.operation(path)
	}
	return nil
}

// operation judges a file of a rebase, an am, a cherry-pick or a revert that is
// under way: --continue, --abort or the end of it takes the commits that it
// names into the work tree.
func (r *repository) operation(path string) {
	parts := strings.Split(path, "/")
	if parts[0] == "worktrees" && len(parts) > 2 {
		parts = parts[2:]
	}
	if len(parts) < 2 || r.entry(path) == "" {
		return
	}
	switch parts[0] {
	case "reftable":
		r.unread(path, errors.New("refs in this format are not read"))
		return
	case "rebase-merge", "rebase-apply", "sequencer":
	default:
		return
	}
	name := parts[len(parts)-1]
	isList := strings.HasPrefix(name, "git-rebase-todo") || name == "todo" || name == "done"
	if !isList && !operationCommits.has(name) {
		return
	}
	text, err := r.j.mergedText(r.dir + "/" + path)
	if err != nil {
		r.unread(path, err)
		return
	}
	known := map[string]bool{}
	if before, err := r.d.read(changeset.Workspace, r.dir+"/"+path); err == nil {
		for _, line := range lines(before) {
			known[line] = true
		}
	}
	for _, line := range lines(text) {
		if known[line] {
			continue
		}
		words := strings.Fields(line)
		if isList {
			words = listedCommits(words)
		}
		for _, word := range words {
			id, err := gitdb.ParseOID(word)
			switch {
			case err == nil:
				r.commit(r.dir+"/"+path, "the operation under way", "", id)
			case !isList || isHex(word) || strings.ContainsAny(word, "@^~:{"):
				r.unread(path, errors.New("it names a commit in another way than by its full name"))
				return
			}
		}
	}
}

// operationCommits are the files of an operation that hold names of commits.
const operationCommits = set("orig-head onto autostash amend squash-onto stopped-sha head abort-safety original-commit")

// listedCommits returns what a line of a todo list names as a commit: the
// subject after it may be anything.
func listedCommits(words []string) []string {
	if len(words) < 2 || words[0][0] == '#' {
		return nil
	}
	switch strings.ToLower(words[0]) {
	case "exec", "x", "break", "b", "noop", "label", "l", "update-ref", "u":
		return nil
	}
	words = words[1:]
	if len(words) > 1 && (words[0] == "-c" || words[0] == "-C") {
		if words[1] == "" || len(words) == 2 {
			return words[1:]
		}
		return words[1:3]
	}
	return words[:1]
}

// isHex reports whether a word could be the short name of an object.
func isHex(word string) bool {
	return len(word) >= 4 && strings.Trim(word, "0123456789abcdefABCDEF") == ""
}

// entry returns the path in the change by which a file of the git directory
// arrives; "" where it does not.
func (r *repository) entry(names ...string) string {
	for _, name := range names {
		if e := r.j.find(r.dir + "/" + name); e != nil && e.After != nil {
			return e.Path
		}
	}
	return ""
}

// unread holds what cannot be read as git would read it.
func (r *repository) unread(name string, err error) {
	row := ruleOf("git-delivery")
	r.j.report(r.dir+"/"+name, row, Hold, "what it would deliver cannot be seen ("+short(err.Error())+"): "+row.Why)
}

func (r *repository) verify(touched []string) error {
	findings, err := r.new.Verify(touched)
	if err != nil {
		r.unread(touched[0], err)
		return err
	}
	for _, f := range findings {
		if path := r.entry(f.Path); path != "" {
			r.j.rule(path, "git-forged", Printable(f.Reason))
		}
	}
	return nil
}

func (r *repository) refs() {
	if r.old != nil {
		refs, err := r.old.Refs()
		if err == nil {
			for _, ref := range refs {
				r.oldRefs[ref.Name] = ref.ID
			}
			if head := r.oldRefs["HEAD"]; head != "" {
				r.base, _ = r.new.TreeOf(head) // unborn, or gone: everything is new
			}
		}
	}
	refs, err := r.new.Refs()
	if err != nil {
		if path := r.firstRefEntry(); path != "" {
			r.unread(strings.TrimPrefix(path, r.dir+"/"), err)
		}
		return
	}
	for _, ref := range refs {
		path := r.entry(ref.Name, "packed-refs")
		old := r.oldRefs[ref.Name]
		switch {
		case path == "" || ref.ID == "" || ref.Target != "" || ref.ID == old:
		case strings.HasPrefix(ref.Name, "refs/notes/"): // never checked out
		case strings.HasPrefix(ref.Name, "refs/replace/"):
			r.j.rule(path, "git-replace", "")
		default:
			r.commit(path, ref.Name, old, ref.ID)
		}
	}
}

func (r *repository) firstRefEntry() string {
	for i := range r.j.entries {
		rest, ok := strings.CutPrefix(r.j.entries[i].Path, r.dir+"/")
		if ok && (strings.HasPrefix(rest, "refs/") || rest == "HEAD" || rest == "packed-refs") && !r.j.entries[i].IsDir() {
			return r.j.entries[i].Path
		}
	}
	return ""
}

func (r *repository) stash() {
	path := r.entry("logs/refs/stash", "refs/stash")
	if path == "" {
		return
	}
	entries, err := r.new.Stash()
	if err != nil {
		r.unread(strings.TrimPrefix(path, r.dir+"/"), err)
		return
	}
	var known []gitdb.OID
	if r.old != nil {
		known, _ = r.old.Stash()
	}
	for _, id := range entries {
		if slices.Contains(known, id) {
			continue
		}
		r.commit(path, "the stash", "", id)
		// Its second and third parents hold the index and what was untracked.
		info, err := r.new.Commit(id)
		if err != nil {
			continue // reported
		}
		for _, parent := range info.Parents[min(1, len(info.Parents)):] {
			r.commit(path, "the stash", "", parent)
		}
	}
}

// commit judges what checking out a new commit would deliver where the old one,
// or else the host's HEAD, is checked out.
func (r *repository) commit(path, name string, old, new gitdb.OID) {
	tree, err := r.new.TreeOf(new)
	if err != nil {
		r.unread(strings.TrimPrefix(path, r.dir+"/"), err)
		return
	}
	before := r.base
	if old != "" {
		if tree, err := r.new.TreeOf(old); err == nil {
			before = tree
		}
	}
	if tree == "" || r.judged[[2]gitdb.OID{before, tree}] {
		return
	}
	r.judged[[2]gitdb.OID{before, tree}] = true
	c := &changeset.Changeset{}
	for change, err := range r.new.Diff(before, tree) {
		if err != nil {
			r.unread(strings.TrimPrefix(path, r.dir+"/"), err)
			return
		}
		c.Entries = append(c.Entries, entryOf(change))
	}
	r.judge(path, name, before, c)
}

// index judges what is staged.
func (r *repository) index() {
	path := r.entry("index")
	if path == "" {
		return
	}
	index, err := r.new.Index()
	if err != nil {
		r.unread("index", err)
		return
	}
	known := map[string]gitdb.IndexEntry{}
	if r.old != nil {
		if old, err := r.old.Index(); err == nil {
			for _, e := range old.Entries {
				known[e.Path] = e
			}
		}
	}
	c := &changeset.Changeset{}
	last := ""
	for _, e := range index.Entries {
		was := known[e.Path]
		if was.ID == e.ID && was.Mode == e.Mode || e.Mode&gitdb.ModeType == gitdb.ModeTree || e.Path == last {
			continue
		}
		last = e.Path
		c.Entries = append(c.Entries, entryOf(gitdb.Change{Path: e.Path, OldMode: was.Mode, OldID: was.ID, NewMode: e.Mode, NewID: e.ID}))
	}
	r.judge(path, "the index", r.base, c)
}

// entryOf makes an entry of a change between trees. Its SourcePath is the name
// of the new blob.
func entryOf(c gitdb.Change) changeset.Entry {
	e := changeset.Entry{Path: c.Path, Op: changeset.Modified, Source: changeset.Layer, SourcePath: string(c.NewID)}
	state := func(mode uint32, id gitdb.OID) *changeset.State {
		s := &changeset.State{Mode: mode & 0o777, Digest: string(id)}
		switch mode & gitdb.ModeType {
		case 0:
			return nil
		case gitdb.ModeFile:
			s.Type = fsat.Regular
		case gitdb.ModeSymlink:
			s.Type = fsat.Symlink
		default:
			s.Type = fsat.Directory // a submodule's place
		}
		return s
	}
	e.Before, e.After = state(c.OldMode, c.OldID), state(c.NewMode, c.NewID)
	switch {
	case e.Before == nil:
		e.Op = changeset.Created
	case e.After == nil:
		e.Op = changeset.Deleted
	}
	return e
}

// judge holds the difference of two trees against the table, as a change of the
// work tree, and reports it at the path by which it arrives.
func (r *repository) judge(path, name string, before gitdb.OID, c *changeset.Changeset) {
	tree := &treeHost{repository: r, base: before}
	for i := range c.Entries {
		e := &c.Entries[i]
		if e.After != nil && e.After.Type == fsat.Symlink {
			text, err := r.new.Blob(gitdb.OID(e.SourcePath), maxContent)
			if err != nil {
				r.unread(strings.TrimPrefix(path, r.dir+"/"), err)
				return
			}
			e.After.Target = string(text)
		}
	}
	slices.SortFunc(c.Entries, func(a, b changeset.Entry) int { return strings.Compare(a.Path, b.Path) })
	request := r.j.Request
	request.Changes = c
	request.WorkspacePath = strings.TrimSuffix(fsat.Join(r.j.WorkspacePath, r.work), "/")
	findings, err := judgeOn(request, tree)
	if err != nil {
		r.unread(strings.TrimPrefix(path, r.dir+"/"), err)
		return
	}
	for _, f := range findings {
		at, _ := slices.BinarySearchFunc(c.Entries, f.Path, func(e changeset.Entry, path string) int { return strings.Compare(e.Path, path) })
		if r.there(&c.Entries[at]) {
			continue
		}
		f.Delivers, f.Path = f.Path, path
		f.When = "once " + name + " is checked out or applied, " + f.When
		r.j.add(f)
	}
}

// there reports whether the work tree holds, after the promotion, what an entry
// would deliver.
func (r *repository) there(e *changeset.Entry) bool {
	if !r.hasWork {
		return false
	}
	path := r.work + e.Path
	typ, found := r.j.merged(path)
	if e.After == nil {
		return !found
	}
	if !found || typ != e.After.Type {
		return false
	}
	if typ == fsat.Symlink {
		text, err := r.j.mergedLink(path)
		return err == nil && text == e.After.Target
	}
	text, err := r.j.mergedText(path)
	return err == nil && r.new.Format().Name(gitdb.Blob, text) == gitdb.OID(e.SourcePath)
}

// treeHost shows a tree of git objects as a workspace, and blobs as a layer.
// Beyond the tree all is as the real host has it.
type treeHost struct {
	*repository
	base gitdb.OID
}

func (t *treeHost) lookup(path string) (gitdb.TreeEntry, bool, error) {
	at := t.base
	var entry gitdb.TreeEntry
	for name := range strings.SplitSeq(path, "/") {
		if at == "" {
			return entry, false, nil
		}
		entries, err := t.new.Tree(at)
		if err != nil {
			return entry, false, err
		}
		i := slices.IndexFunc(entries, func(e gitdb.TreeEntry) bool { return e.Name == name })
		if i < 0 {
			return entry, false, nil
		}
		entry, at = entries[i], ""
		if entry.Mode&gitdb.ModeType == gitdb.ModeTree {
			at = entry.ID
		}
	}
	return entry, true, nil
}

func inGitDirectory(path string) bool { return path == ".git" || strings.HasPrefix(path, ".git/") }

func (t *treeHost) read(root changeset.Root, path string) ([]byte, error) {
	if root == changeset.Workspace {
		if inGitDirectory(path) {
			return t.d.read(root, t.work+path)
		}
		entry, found, err := t.lookup(path)
		switch {
		case err != nil || !found:
			return nil, errUnreadable
		case entry.Mode&gitdb.ModeType != gitdb.ModeFile:
			return nil, errNoFile
		}
		path = string(entry.ID)
	}
	text, err := t.new.Blob(gitdb.OID(path), maxContent)
	switch {
	case errors.Is(err, gitdb.ErrTooLarge):
		return nil, errTooLarge
	case err != nil:
		return nil, errUnreadable
	}
	return text, nil
}

func (t *treeHost) stat(path string) (fsat.Stat, bool, error) {
	if inGitDirectory(path) {
		return t.d.stat(t.work + path)
	}
	entry, found, err := t.lookup(path)
	return fsat.Stat{Type: typeOf(entry.Mode), Mode: entry.Mode & 0o777}, found, err
}

func typeOf(mode uint32) fsat.Type {
	switch mode & gitdb.ModeType {
	case gitdb.ModeFile:
		return fsat.Regular
	case gitdb.ModeSymlink:
		return fsat.Symlink
	}
	return fsat.Directory
}

func (t *treeHost) list(path string) ([]fsat.Dirent, error) {
	if inGitDirectory(path) {
		return t.d.list(t.work + path)
	}
	at := t.base
	if path != "." {
		entry, found, err := t.lookup(path)
		if err != nil || !found || entry.Mode&gitdb.ModeType != gitdb.ModeTree {
			return nil, err
		}
		at = entry.ID
	}
	if at == "" {
		return nil, nil
	}
	entries, err := t.new.Tree(at)
	var list []fsat.Dirent
	for _, e := range entries {
		list = append(list, fsat.Dirent{Name: e.Name, Type: typeOf(e.Mode)})
	}
	return list, err
}

func (t *treeHost) readlink(path string) (string, error) {
	entry, found, err := t.lookup(path)
	if err != nil || !found {
		return "", errors.Join(errUnreadable, err)
	}
	text, err := t.new.Blob(entry.ID, maxContent)
	return string(text), err
}

// A blob has one name, and no attributes.
func (t *treeHost) layerStat(string, bool) (fsat.Stat, bool, error) {
	return fsat.Stat{Type: fsat.Regular, Nlink: 1}, false, nil
}
func (t *treeHost) names() (map[uint64]uint64, error) { return nil, nil }

func (t *treeHost) outside(path string) (place, error) { return t.d.outside(path) }
func (t *treeHost) userFile(path string) []byte        { return t.d.userFile(path) }
func (t *treeHost) leadsHere(path string) string       { return t.d.leadsHere(path) }
func (t *treeHost) delivered(*judge) error             { return nil }
