package hostile

import "syscall"

// room is the least free space, in bytes, of a file system in memory that is used; containers often
// give it 64 MiB.
const room = 2 << 30

// inMemory returns the folder of a file system in memory with room, or "".
func inMemory() string {
	const dir, tmpfs = "/dev/shm", 0x01021994
	var s syscall.Statfs_t
	if syscall.Statfs(dir, &s) != nil || int64(s.Type) != tmpfs ||
		s.Bavail*uint64(s.Bsize) < room || syscall.Access(dir, 2) != nil {
		return ""
	}
	return dir
}
