//go:build linux

package caddymodule

import (
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// wire carries packets between two network devices, which may be in different namespaces.
// It is a program's own (tun), so that what it does to them needs no module of the kernel.
type wire struct {
	cut atomic.Bool // all are lost
	bad atomic.Bool // each is late by 30 to 50 ms, and one of 50 lost

	passed, lost atomic.Int64

	ends [2]*os.File
	wg   sync.WaitGroup
}

// open makes the two devices.
func (w *wire) open(names ...string) error {
	for k, name := range names {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			w.close()
			return err
		}
		req, err := unix.NewIfreq(name)
		if err == nil {
			req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
		}
		w.ends[k] = os.NewFile(uintptr(fd), name) // after it is one: before, nobody can wait for it
		if err != nil {
			w.close()
			return err
		}
	}
	for k := range w.ends {
		w.wg.Go(func() { w.carry(w.ends[k], w.ends[1-k]) })
	}
	return nil
}

func (w *wire) close() {
	for _, f := range w.ends {
		if f != nil {
			_ = f.Close()
		}
	}
	w.wg.Wait()
}

// carry hands on what comes until the device is closed.
func (w *wire) carry(from, to *os.File) {
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		bad := w.bad.Load()
		if w.cut.Load() || bad && rand.IntN(50) == 0 {
			w.lost.Add(1)
			continue
		}
		w.passed.Add(1)
		if !bad {
			_, _ = to.Write(buf[:n]) // a device that is down drops it, as a wire does
			continue
		}
		packet := append([]byte(nil), buf[:n]...)
		time.AfterFunc(30*time.Millisecond+rand.N(20*time.Millisecond), func() { _, _ = to.Write(packet) })
	}
}
