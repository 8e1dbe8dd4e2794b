//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package discover

import (
	"errors"
	"syscall"
)

// share lets other programs have the port, too.
func share(fd uintptr) error {
	return errors.Join(
		syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1),
		syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEPORT, 1),
	)
}
