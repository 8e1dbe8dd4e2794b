package fleet

import (
	"context"
	"log/slog"
	"time"
)

// remember makes the index what the specification says: its size, and where it is
// kept. What cannot be kept is told once and held in memory. The caller holds
// applying.
func (m *Manager) remember(s WarmSpec, log *slog.Logger) {
	m.mu.Lock()
	f := m.warmFile
	m.resize(s.Size)
	m.mu.Unlock()
	if f != nil && f.dir == s.Dir {
		return
	}
	if f != nil {
		m.mu.Lock()
		m.warmFile = nil
		m.mu.Unlock()
		f.stop()
		<-f.done
	}
	if s.Dir == "" {
		return
	}
	f, err := openWarm(s.Dir, log)
	if err != nil {
		log.Warn("what the servers have in their caches is not remembered across restarts",
			"folder", s.Dir, "error", err)
		return
	}
	m.keepIn(f)
}

// keepIn takes what the file has into the index, and keeps that in it from now on.
func (m *Manager) keepIn(f *warmFile) {
	m.mu.Lock()
	if m.warm.key != f.key { // what was hashed with another one is never asked for again
		m.warm.key = f.key
		m.reset(newWarmIndex(m.warm.size))
	}
	m.mu.Unlock()
	err := f.load(func(k warmKey, rec []byte) bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.warm.index.restore(k, rec, time.Now())
	})
	if err != nil {
		f.log.Warn("what the servers have in their caches could not be read", "folder", f.dir, "error", err)
	}
	ctx, stop := context.WithCancel(m.ctx)
	f.stop, f.done = stop, make(chan struct{})
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		stop()
		_ = guarded(f.db.Close)
		return
	}
	m.warmFile = f
	m.wg.Go(func() {
		defer close(f.done)
		m.keep(ctx, f)
	})
}

// keep writes what has changed, now and then and at the end.
func (m *Manager) keep(ctx context.Context, f *warmFile) {
	tick := time.NewTicker(warmEvery)
	defer tick.Stop()
	failed := false
	for ended := false; !ended; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			ended = true
		}
		err := m.writeChanges(f)
		if err != nil && !failed {
			f.log.Warn("what the servers have in their caches could not be written", "folder", f.dir, "error", err)
		}
		failed = err != nil
	}
	if err := guarded(f.db.Close); err != nil {
		f.log.Warn("what the servers have in their caches could not be written", "folder", f.dir, "error", err)
	}
}

// writeChanges writes the instances that have changed. The lock is held for one
// instance at a time.
func (m *Manager) writeChanges(f *warmFile) error {
	m.mu.Lock()
	index := m.warm.index
	ids := index.changedRecords(nil)
	m.mu.Unlock()
	var changes []warmChange
	for _, id := range ids {
		m.mu.Lock()
		if k := index.instances[id].key; k != (warmKey{}) {
			changes = append(changes, warmChange{k.name(), index.record(id, nil, time.Now())})
		}
		m.mu.Unlock()
	}
	err := f.save(changes)
	if err != nil {
		m.mu.Lock()
		for _, id := range ids {
			index.instances[id].changed = true
		}
		m.mu.Unlock()
	}
	return err
}

// resize gives the index another size. What it knows stays, as far as that holds it.
func (m *Manager) resize(size int64) {
	if size == m.warm.size {
		return
	}
	m.warm.size = size
	old, index := m.warm.index, newWarmIndex(size)
	for k, id := range old.ids {
		index.restore(k, old.record(id, nil, time.Now()), time.Now())
	}
	m.reset(index)
}

// reset puts another index in the place of the one that is there. The instances have
// other names in it.
func (m *Manager) reset(index *warmIndex) {
	m.warm.index = index
	for _, n := range m.nodes {
		for _, i := range n.instances {
			i.warm = 0
		}
	}
}
