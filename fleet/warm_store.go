package fleet

// store holds things of one kind in pages, which never move: growing copies nothing. The
// zero ID is none.
type store[ID ~uint32, T any] struct {
	pages [][]T
	free  []ID // given back
	made  ID   // handed out once, given back or not
}

const pageBits = 8

func (s *store[ID, T]) at(n ID) *T { return &s.pages[n>>pageBits][n&(1<<pageBits-1)] }

// take returns one that nobody uses, which is zero.
func (s *store[ID, T]) take() ID {
	if last := len(s.free) - 1; last >= 0 {
		n := s.free[last]
		s.free = s.free[:last]
		return n
	}
	s.made++
	if int(s.made>>pageBits) >= len(s.pages) {
		s.pages = append(s.pages, make([]T, 1<<pageBits))
	}
	return s.made
}

// giveBack makes one free.
func (s *store[ID, T]) giveBack(n ID) {
	var zero T
	*s.at(n) = zero
	s.free = append(s.free, n)
}

// used is how many somebody uses.
func (s *store[ID, T]) used() int { return int(s.made) - len(s.free) }

// bytes is the memory that all take, of so many bytes each.
func (s *store[ID, T]) bytes(each int64) int64 {
	return int64(len(s.pages))<<pageBits*each + 4*int64(cap(s.free))
}
