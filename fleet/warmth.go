package fleet

import (
	"cmp"
	"crypto/rand"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// WarmSpec says what is remembered of the servers' caches.
type WarmSpec struct {
	// Size is the most memory in bytes for it, up to MaxWarmSize. Default: 64 MiB.
	Size int64

	// Dir is the folder in which it is kept across restarts, and the key of the
	// blocks' hashes with it. Default: it is not kept.
	Dir string
}

// warmth is what the manager knows of the instances' caches.
type warmth struct {
	index *warmIndex
	key   [16]byte
	size  int64

	asked *waiter // whose blocks the index looked at last; nil: it may have changed since
}

const defaultWarmSize = 64 << 20

// MaxWarmSize is the largest index, in bytes: 10 GiB.
const MaxWarmSize = 10 << 30

func newWarmth() warmth {
	w := warmth{index: newWarmIndex(defaultWarmSize), size: defaultWarmSize}
	_, _ = rand.Read(w.key[:]) // it never fails
	return w
}

// BlockKey is the key of the hashes in [Request.Blocks]: what is written of them
// tells nothing to who does not have it. It changes with the folder of the policy in
// force.
func (m *Manager) BlockKey() [16]byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.warm.key
}

// warmRun is what a claim brought to its instance's cache.
type warmRun struct {
	index    *warmIndex // nil: nothing
	id       warmID
	blocks   []uint64
	had      int // of the blocks, those expected to be there before
	sequence sequenceRun
	rest     bool   // of an answer that was begun elsewhere: the prompt is longer than its blocks
	prompt   Tokens // of the prompt, as the instance counted them; 0: it did not say
	whole    Tokens // with the answer
}

// remembered is what is remembered of a request: the blocks of its prompt or, where
// they are unknown, its conversation as one block.
func (r *Request) remembered() []uint64 {
	if len(r.Blocks) > 0 || r.Session == "" {
		return r.Blocks
	}
	var d xxhash.Digest
	d.Reset()
	_, _ = d.WriteString(r.Model)
	_, _ = d.Write([]byte{0})
	_, _ = d.WriteString(r.Session)
	return []uint64{d.Sum64()}
}

// expect notes of each candidate how much of the request it is expected to hold.
func (m *Manager) expect(w *waiter, cand []candidate) {
	if len(w.blocks) == 0 {
		return
	}
	m.look(w)
	for k := range cand {
		cand[k].cached = m.warm.index.expected(m.warmID(cand[k].instance))
	}
}

func (m *Manager) look(w *waiter) {
	m.warm.index.look(w.blocks)
	m.warm.asked = w
}

// A part of a prompt counts as its beginning if it is long enough to tell prompts
// apart and to be worth going where it is cached: a block or two are the same in all
// requests of an application.
const (
	warmFrom  = 4 // blocks
	warmShare = 4 // at least one in so many of the prompt's
)

// warmest returns the candidate that holds the longest beginning of the request; of
// equal ones, one that has room, and the least of our requests. nil: none holds
// enough of it.
func (m *Manager) warmest(w *waiter, cand []candidate) *instance {
	enough := 1
	if len(w.Blocks) > 0 {
		enough = max(min(warmFrom, len(w.Blocks)), (len(w.Blocks)+warmShare-1)/warmShare)
	}
	var best *candidate
	for i := range cand {
		x := &cand[i]
		if x.cached < enough {
			continue
		}
		if best == nil || cmp.Or(
			cmp.Compare(x.cached, best.cached),
			compareBool(!x.full(), !best.full()),
			cmp.Compare(best.occupied(), x.occupied()),
		) > 0 {
			best = x
		}
	}
	if best == nil {
		return nil
	}
	return best.instance
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// warmID is the instance's name in the index.
func (m *Manager) warmID(i *instance) warmID {
	if i.warm != 0 {
		return i.warm
	}
	return m.nameInIndex(i)
}

func (m *Manager) nameInIndex(i *instance) warmID {
	const many = 4096
	if len(m.warm.index.ids) >= many {
		m.warm.index.retain(m.hasWarmID)
	}
	i.warm = m.warm.index.id(i.node.name+" "+i.node.address, i.Model)
	return i.warm
}

func (m *Manager) hasWarmID(id warmID) bool {
	return slices.ContainsFunc(m.nodes, func(n *node) bool {
		return slices.ContainsFunc(n.instances, func(i *instance) bool { return i.warm == id })
	})
}

// Of a server's cache only the pool of its context is known. llama-server keeps
// prompts in the machine's memory besides (--cache-ram, 8 GiB unless told
// otherwise): as much as hiddenRoom pools are expected there. What is too much is
// corrected by the first answers that find less.
const (
	hiddenRoom  = 3
	unknownPool = 65536   // tokens
	mostPool    = 1 << 40 // tokens
	blockTokens = 64      // of 256 bytes
)

// cacheBlocks is how many blocks the instance can be expected to hold.
func (i *instance) cacheBlocks() int {
	pool := min(max(0, i.Context), mostPool)
	switch {
	case pool == 0:
		pool = unknownPool
	case !i.KVUnified:
		pool *= Tokens(min(i.lanes(), 1<<16))
	}
	return int(min(pool/blockTokens*(1+hiddenRoom), maxPairs))
}

// noteRun notes that the instance of a claim is given the request.
func (m *Manager) noteRun(c *claim, w *waiter) {
	if len(w.blocks) == 0 {
		return
	}
	id := m.warmID(c.instance)
	if m.warm.asked != w {
		m.look(w)
	}
	c.warm = warmRun{
		index:    m.warm.index,
		id:       id,
		blocks:   w.blocks,
		had:      m.warm.index.idle(id),
		sequence: m.warm.index.begins(id, w.blocks, c.instance.cacheBlocks()),
		rest:     w.first || len(w.Blocks) == 0,
	}
}

// endRun notes that the claim's lane is free: what it has can be used again.
func (m *Manager) endRun(c *claim) {
	r := &c.warm
	if r.index == nil || r.index != m.warm.index {
		return
	}
	takes, whole := float64(r.whole)/blockTokens, 0.0
	if r.prompt > 0 && !r.rest {
		whole = float64(len(r.blocks)) * float64(r.whole) / float64(r.prompt)
	}
	r.index.ends(r.sequence, takes, whole)
}

// learnCache compares what an attempt found in its instance's cache with what was
// expected, and takes back what it did not come to read. false: it told nothing of
// the cache.
func (m *Manager) learnCache(c *claim, t *meter) (expected, actual Tokens, ok bool) {
	prompt, actual := t.Cached+t.Prompt, t.Cached
	if prompt == 0 {
		prompt, actual = t.progress.Total, t.progress.Cached
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r := c.warm
	if r.index == nil || r.index != m.warm.index {
		return 0, 0, false
	}
	if t.chunks == 0 {
		read := 0
		if t.progress.Total > 0 && !r.rest {
			read = int(int64(len(r.blocks)) * int64(t.progress.Processed) / int64(t.progress.Total))
		}
		r.index.cut(r.sequence, max(r.had, read))
	}
	if r.rest || prompt <= 0 {
		return 0, 0, false
	}
	expected = Tokens(int64(prompt) * int64(r.had) / int64(len(r.blocks)))
	r.index.correct(r.id, r.blocks, expected, actual, prompt)
	return expected, actual, true
}

// forgetCaches notes that the node's servers were restarted.
func (m *Manager) forgetCaches(n *node) {
	for _, i := range n.instances {
		m.forgetCache(i)
	}
}

func (m *Manager) forgetCache(i *instance) {
	if i.warm != 0 {
		m.warm.index.forget(i.warm)
	}
}

// heardOfCache forgets the cache of an instance whose server says that it is another
// now, or that it gave its memory away.
func (m *Manager) heardOfCache(i *instance, said Instance) {
	other := i.said.Fingerprint != "" && said.Fingerprint != i.said.Fingerprint
	if other || i.said.State == StateReady && said.State != StateReady {
		m.forgetCache(i)
	}
}

// WarmStatus is what is expected of the servers' caches.
type WarmStatus struct {
	Entries   int                  `json:"entries"` // pairs of a block and an instance
	Bytes     int64                `json:"bytes"`
	Limit     int                  `json:"limit"` // of entries
	Kept      bool                 `json:"kept"`  // across restarts
	Instances []WarmInstanceStatus `json:"instances"`
}

// WarmInstanceStatus is what is expected of one instance's cache. Token counts are
// since the process began.
type WarmInstanceStatus struct {
	Node       string  `json:"node"`
	Model      string  `json:"model"`
	Blocks     int     `json:"blocks"`
	Confidence float64 `json:"confidence"` // from 0 to 1

	Answers        int      `json:"answers"` // that told what they found cached
	ExpectedTokens Tokens   `json:"expected_tokens"`
	ReusedTokens   Tokens   `json:"reused_tokens"`
	Accuracy       *float64 `json:"accuracy,omitempty"` // share of what was expected that was there
}

// Warm returns what is expected of the caches of the nodes of the policy in force.
func (m *Manager) Warm() WarmStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	x := m.warm.index
	s := WarmStatus{Limit: x.limit, Kept: m.warmFile != nil, Instances: []WarmInstanceStatus{}}
	s.Entries, s.Bytes = x.size()
	a := m.inForce()
	if a == nil {
		return s
	}
	for _, n := range a.nodes {
		for _, i := range n.instances {
			if !i.gone {
				s.Instances = append(s.Instances, x.instances[m.warmID(i)].status(n.name, i.Model))
			}
		}
	}
	return s
}

func (i *warmInstance) status(node, model string) WarmInstanceStatus {
	s := WarmInstanceStatus{
		Node: node, Model: model, Blocks: i.blocks, Confidence: i.confidence,
		Answers: i.answers, ExpectedTokens: i.expected, ReusedTokens: i.reused,
	}
	if i.expected > 0 {
		s.Accuracy = new(float64(i.met) / float64(i.expected))
	}
	return s
}
