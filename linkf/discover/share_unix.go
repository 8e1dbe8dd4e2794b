//go:build unix && !(darwin || dragonfly || freebsd || netbsd || openbsd)

package discover

import "syscall"

// share lets other programs have the port, too.
func share(fd uintptr) error {
	return syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
}
