package checkpoint

import "gad/internal/vfs"

// FS is the file system that checkpoints are written to. Every function that takes one works on
// [Disk] where it is nil. Another implementation, in memory or one that injects failures, has the
// methods Create, OpenAppend, Open, Mkdir, MkdirAll, Rename, Remove, RemoveAll, Stat, ReadDir,
// ReadFile, SyncDir and Free. They mean what they mean in the os package; SyncDir makes the names
// in a folder survive a loss of power, Free returns the number of bytes that can still be written.
type FS = vfs.FS

// File is an open file of an FS: io.Reader, io.Writer, io.Closer, Sync and Stat, as
// *os.File has them.
type File = vfs.File

// Disk is the file system of the operating system.
var Disk FS = vfs.OS

// ErrTarget is wrapped by the error of an output that cannot be created at the given path: the path
// or its permissions are wrong, not the disk.
var ErrTarget = vfs.ErrTarget
