package supervise

import "time"

// Disk bounds what a box's layers take of a file system of the host: the blocks
// of its files, holes not counted, and its inodes.
//
// Nothing in the kernel does that for an ordinary user, so the file system's
// free space is polled, which costs two system calls, and the layers are walked
// only when it fell by more than half of what is left of the limit.
type Disk struct {
	Dir   int      // of the box; its users must not close it before the command ended
	Names []string // the directories in it that the box writes to, what is below them included
	Bytes int64    // 0: no limit
	Files int64    // 0: no limit

	base   usage     // what was there when the branch was made
	now    usage     // of the last walk
	before space     // when the box started
	walked space     // at the last walk
	next   time.Time // of a walk in any case
	soon   time.Time // of a walk where only walks count inodes
}

// usage is what layers take.
type usage struct {
	bytes, files int64
	closed       bool // a part of it could not be looked at
}

// space is what a file system has left.
type space struct {
	bytes, files int64
	total        int64
	dirtied      int64 // bytes that this machine ever wrote to caches; 0 where free space tells at once
}
