package slotlog

import (
	"encoding/binary"
	"maps"
	"math/bits"
	"slices"
)

// eight is the eight bytes at b[i:] as one number: whether some words begin there is
// then one comparison. b must have as many. (The third bound spares what Go does for
// slices that may be empty.)
func eight(b []byte, i int) uint64 { return binary.LittleEndian.Uint64(b[i : i+8 : i+8]) }

// eightOf is the number that eight letters are.
func eightOf(s string) uint64 { return eight([]byte(s), 0) }

const (
	eightOnes  = 0x0101010101010101
	eightTops  = 0x80 * eightOnes
	eightZeros = '0' * eightOnes
)

// A line is looked at through windows onto the chunk, each of which begins where the one
// before it found something. As their sizes are known and their offsets are cut to less,
// none of these looks needs a check of bounds.
type (
	lineWindow    [ahead]byte // all of it
	clockWindow   [ahead - 16]byte
	frameWindow   [ahead - 16 - 32]byte // the server's words
	messageWindow [ahead - 16 - 32 - 64]byte
)

func (w *lineWindow) clock(i int) *clockWindow {
	i &= 15
	return (*clockWindow)(w[i : i+len(clockWindow{})])
}

func (w *clockWindow) frame(i int) *frameWindow {
	i &= 31
	return (*frameWindow)(w[i : i+len(frameWindow{})])
}

func (w *frameWindow) message(i int) *messageWindow {
	i &= 63
	return (*messageWindow)(w[i : i+len(messageWindow{})])
}

// at is the eight bytes at i, which is at most 15, 63 or 127.
func (w *lineWindow) at(i int) uint64 {
	i &= 15
	return binary.LittleEndian.Uint64(w[i : i+8])
}

func (w *clockWindow) at(i int) uint64 {
	i &= 15
	return binary.LittleEndian.Uint64(w[i : i+8])
}

func (w *frameWindow) at(i int) uint64 {
	i &= 63
	return binary.LittleEndian.Uint64(w[i : i+8])
}

func (w *messageWindow) at(i int) uint64 {
	i &= 127
	return binary.LittleEndian.Uint64(w[i : i+8])
}

// lettersOf has a bit for each of eight bytes that can be in a line of text: none of them
// is a control character. allLetters is what it is when they all can.
func lettersOf(w uint64) uint64 { return (w | w<<1) & allLetters }

const allLetters = 0x40 * eightOnes

// digits reads the number that eight bytes begin with, and says how many digits it has:
// from 1 to 7, or 0 when there are none or more.
func digits(w uint64) (n, width int) {
	w ^= eightZeros
	stop := (w + 0x76*eightOnes | w) & eightTops // the first byte that is no digit, and some after it
	at := bits.TrailingZeros64(stop) &^ 7
	return int(eightDigits(w << (-at & 63))), at >> 3 & 7
}

// eightDigits is the number that eight bytes below 10 are, the first one first.
func eightDigits(d uint64) uint64 {
	d = d*10 + d>>8 // each second byte: two digits
	const pair = 0x000000ff000000ff
	return (d&pair*(100+1000000<<32) + d>>16&pair*(1+10000<<32)) >> 32
}

// wordSet is a set of what lines begin with: their first bytes, as one number.
type wordSet struct {
	multiplier uint64
	words      [128]uint64
}

func (s *wordSet) have(w uint64) bool { return s.words[w*s.multiplier>>57] == w }

// newWordSet looks for a multiplier that gives each beginning, of so many bytes, a place of
// its own.
func newWordSet(width int, beginnings ...string) *wordSet {
	var words []uint64
	for _, b := range beginnings {
		words = append(words, eightOf(b[:width]+"        ")&(1<<(8*width)-1))
	}
	s := &wordSet{multiplier: 0x9e3779b97f4a7c15}
	for !s.fill(words) {
		s.multiplier *= 0xd1342543de82ef95
	}
	return s
}

// fill gives each word its place, if there is one for each.
func (s *wordSet) fill(words []uint64) bool {
	s.words = [128]uint64{}
	for _, w := range words {
		place := &s.words[w*s.multiplier>>57]
		if *place != 0 && *place != w {
			return false
		}
		*place = w
	}
	return true
}

// wordTable is a wordSet that says what the words are of.
type wordTable struct {
	set wordSet
	are [128]message
}

func (t *wordTable) find(w uint64) message {
	place := w * t.set.multiplier >> 57
	if t.set.words[place] != w {
		return messageOther
	}
	return t.are[place]
}

func newWordTable(messages map[string]message) *wordTable {
	t := &wordTable{set: *newWordSet(8, slices.Collect(maps.Keys(messages))...)}
	for words, m := range messages {
		t.are[eightOf(words)*t.set.multiplier>>57] = m
	}
	return t
}
