package merge

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
	"hutch/internal/gitdb"
	"hutch/internal/globs"
)

// Branch is what is known of the workspace at the time of a branch.
type Branch struct {
	Stamp fsat.Time // T: a file whose ctime is before it was not changed since
	// Record returns how a file of a copied tree looked when it was copied; nil
	// where there is no record, or for an overlay.
	Record func(path string) *changeset.Record
	// Seen reports whether the Before of an entry is what the branch saw: it was
	// read while the file's ctime in the workspace was before Stamp. Nil where
	// that is never known.
	Seen func(e *changeset.Entry) bool
}

// Finder finds what a file held when a branch was made, in the host's own git
// repository. It is for one goroutine at a time.
type Finder struct {
	workspace int
	repo      *gitdb.Repo
	index     *gitdb.Index
	branch    Branch
	headTree  func() (gitdb.OID, error) // "" on an unborn branch
}

// NewFinder reads the index of the host's repository. The workspace's descriptor
// and the Repo belong to the caller.
func NewFinder(workspaceFD int, repo *gitdb.Repo, branch Branch) (*Finder, error) {
	index, err := repo.Index()
	if err != nil {
		return nil, fmt.Errorf("find bases: %w", err)
	}
	headTree := func() (gitdb.OID, error) {
		head, err := repo.Head()
		if err != nil || head == "" {
			return "", err
		}
		return repo.TreeOf(head)
	}
	return &Finder{workspaceFD, repo, index, branch, sync.OnceValues(headTree)}, nil
}

// Why the base of a file is unknown.
var (
	errUntracked = errors.New("git does not track it")
	errUnsaved   = errors.New("its state when the branch was made is not in git")
	errRacy      = errors.New("git cannot tell whether it was changed: it is as new as the index (git status settles it)")
	errNewer     = errors.New("git's index knows it only as it was after the branch was made")
	errFlagged   = errors.New("git was told not to look at it")
	errConverted = errors.New("git converts its content (filter, encoding or line ends)")
)

// Base returns what the file of an entry held when the branch was made. An error
// says why that is unknown; it is no reason to stop. exact is false where it rests
// on the assumption named under 3.
//
//  1. Where the branch's own sight of the file has a digest, only content with
//     that digest is the base: the blob of the index or of HEAD, or none.
//  2. A record of a copied tree with the inode, size and time of the index's
//     entry: the blob is what was copied, as far as git itself can tell a changed
//     file.
//  3. An overlay keeps no record of a file that it did not copy. The blob is the
//     base when the entry's inode is the one that the branch saw (where it is
//     known) and all its times are before the branch.
//
// What 3 cannot see is an edit before the branch that git had not been told of. It
// is then taken for a change of both sides, who both began with it, and taken
// once: a correct merge all the same, and at worst a conflict too many. But where
// one side has undone that edit since, the undoing is lost, for the side that
// kept it looks like the only one that changed anything.
//
// Under 2 and 3 an entry as new as the index itself is refused ("racily clean"),
// and so is a file whose bytes are not those of its blob. Conversions of line ends
// and $Id$ always change the size, so size tells. Filters and encodings need not:
// a path to which an attribute may give one is refused. Attributes outside the
// repository (core.attributesFile) are not read.
func (f *Finder) Base(e *changeset.Entry) (content []byte, exact bool, err error) {
	if e.Before != nil && f.branch.Seen != nil && f.branch.Seen(e) && e.Before.Digest != "" {
		content, err = f.byDigest(e.Path, e.Before.Digest)
		return content, true, err
	}
	entry, ok := f.index.Find(e.Path)
	if !ok || entry.IntentToAdd || entry.Mode&gitdb.ModeType != gitdb.ModeFile {
		return nil, false, errUntracked
	}
	var record *changeset.Record
	if f.branch.Record != nil {
		record = f.branch.Record(e.Path)
	}
	switch {
	case !entry.Mtime.Before(f.index.Mtime):
		return nil, false, errRacy
	case !entry.Ctime.Before(f.branch.Stamp) || !entry.Mtime.Before(f.branch.Stamp):
		return nil, false, errNewer
	case record != nil:
		if entry.Ino != uint32(record.HostIno) || int64(entry.Size) != record.Copy.Size || entry.Mtime != record.Copy.Mtime {
			return nil, false, errUnsaved
		}
	case entry.AssumeValid || entry.SkipWorktree:
		return nil, false, errFlagged
	case e.BaseIno != 0 && entry.Ino != uint32(e.BaseIno):
		return nil, false, errUnsaved
	}
	if err := f.unconverted(e.Path); err != nil {
		return nil, false, err
	}
	content, err = f.repo.Blob(entry.ID, maxText)
	if err == nil && len(content) != int(entry.Size) {
		err = errConverted
	}
	return content, record != nil, err
}

// byDigest returns the content of a path in the index or in HEAD that has the
// digest.
func (f *Finder) byDigest(path, digest string) ([]byte, error) {
	var blobs []gitdb.OID
	if entry, ok := f.index.Find(path); ok && entry.Mode&gitdb.ModeType == gitdb.ModeFile {
		blobs = append(blobs, entry.ID)
	}
	tree, err := f.headTree()
	if err != nil {
		return nil, err
	}
	if tree != "" {
		entry, ok, err := f.repo.FileIn(tree, path)
		if err != nil {
			return nil, err
		}
		if ok && entry.Mode&gitdb.ModeType == gitdb.ModeFile && !slices.Contains(blobs, entry.ID) {
			blobs = append(blobs, entry.ID)
		}
	}
	if len(blobs) == 0 {
		return nil, errUntracked
	}
	for _, id := range blobs {
		content, err := f.repo.Blob(id, maxText)
		if err != nil {
			return nil, err
		}
		if changeset.DigestOf(content) == digest {
			return content, nil
		}
	}
	return nil, errUnsaved
}

// maxAttributes is git's own bound for such a file, and more.
const maxAttributes = 100 << 20

// unconverted returns errConverted when an attribute could make git store a path
// otherwise than byte for byte at the same size.
func (f *Finder) unconverted(name string) error {
	info, err := f.repo.File("info/attributes", maxAttributes)
	if err != nil {
		return err
	}
	if converts(string(info), name) {
		return errConverted
	}
	for dir := path.Dir(name); ; dir = path.Dir(dir) {
		text, err := f.attributes(dir)
		if err != nil {
			return err
		}
		if converts(text, strings.TrimPrefix(name, dir+"/")) {
			return errConverted
		}
		if dir == "." {
			return nil
		}
	}
}

// attributes reads the .gitattributes of a directory: as git does from the index
// where there is none.
func (f *Finder) attributes(dir string) (string, error) {
	name := fsat.Join(dir, ".gitattributes")
	st, err := fsat.Lstat(f.workspace, name)
	switch {
	case err == nil && st.Type != fsat.Regular:
		return "", errConverted // not worth to be understood
	case err == nil:
		fd, err := fsat.Open(f.workspace, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			return "", err
		}
		file := os.NewFile(uintptr(fd), name)
		defer file.Close()
		text, err := io.ReadAll(io.LimitReader(file, maxAttributes))
		return string(text), err
	case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR):
		return "", err
	}
	entry, ok := f.index.Find(name)
	if !ok {
		return "", nil
	}
	text, err := f.repo.Blob(entry.ID, maxAttributes)
	return string(text), err
}

// converts reports whether a line of a gitattributes(5) file may give a filter or
// an encoding to name, which is relative to the file. Where it is not sure it says
// yes: to macros and quoted patterns. A pattern that matches a directory is taken
// to match what is in it, unlike git's.
func converts(text, name string) bool {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		for _, attribute := range fields[1:] {
			key, _, _ := strings.Cut(strings.TrimLeft(attribute, "-!"), "=")
			if (key == "filter" || key == "working-tree-encoding") && mayMatch(fields[0], name) {
				return true
			}
		}
	}
	return false
}

func mayMatch(pattern, name string) bool {
	if strings.HasPrefix(pattern, `"`) || strings.HasPrefix(pattern, "[attr]") {
		return true
	}
	lower := strings.ToLower(pattern) // core.ignoreCase lets git match so
	set, err := globs.Parse([]string{pattern})
	folded, err2 := globs.Parse([]string{lower})
	return err != nil || err2 != nil || set.Match(name, false) || folded.Match(strings.ToLower(name), false)
}

// Merge returns a function that merges what the workspace and a box hold of a
// file that both changed, as promote asks for it: nil where there is no merge at
// all, and, where it is not clean, the text with markers, and why.
func (f *Finder) Merge(labels Labels) func(path string, e *changeset.Entry, host, box []byte) (merged []byte, clean bool, why string) {
	return func(_ string, e *changeset.Entry, host, box []byte) ([]byte, bool, string) {
		base, _, err := f.Base(e)
		if err != nil {
			return nil, false, "what both began with is unknown: " + err.Error()
		}
		return Sides(base, host, box, labels)
	}
}
