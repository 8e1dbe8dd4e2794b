package openai

import "bytes"

// edit replaces a range of bytes. With cut, the range is a member of an object and
// goes with the comma that it needs no more.
type edit struct {
	span
	with []byte
	cut  bool
	ord  int // with cut: how many members stand before it
}

// edits are changes of one JSON object. Only members of this object itself may be
// cut; replacements may be anywhere inside.
type edits []edit

func (e *edits) replace(at span, with []byte) {
	*e = append(*e, edit{span: at, with: with})
}

func (e *edits) remove(m member) {
	*e = append(*e, edit{span: m.span(), cut: true, ord: m.ord})
}

// insert adds members, without a comma at their end, as the first of an object
// that has so many members now. open is right after its opening brace.
func (e *edits) insert(open, members int, list []byte) {
	if len(list) == 0 {
		return
	}
	for _, d := range *e {
		if d.cut {
			members--
		}
	}
	if members > 0 {
		list = append(list, ',')
	}
	*e = append(*e, edit{span: span{open, open}, with: list})
}

// apply appends src with the edits made.
func (e edits) apply(dst, src []byte) []byte {
	e.sort()
	at, cuts := 0, 0
	for _, d := range e {
		gap := d.span
		if d.cut {
			gap = d.bounds(src, cuts)
			cuts++
		}
		dst = append(dst, src[at:gap.from]...)
		dst = append(dst, d.with...)
		at = gap.to
	}
	return append(dst, src[at:]...)
}

// bounds is what goes with a member that is cut, where so many before it are.
func (d *edit) bounds(src []byte, cuts int) span {
	if d.ord == cuts { // nothing stays before it: the comma after it goes
		return span{d.from, pastComma(src, d.to)}
	}
	return span{bytes.LastIndexByte(src[:d.from], ','), d.to}
}

// sort orders by place. Edits are few and mostly in order; what was put first at
// one place stays first.
func (e edits) sort() {
	for i := 1; i < len(e); i++ {
		for k := i; k > 0 && before(e[k], e[k-1]); k-- {
			e[k], e[k-1] = e[k-1], e[k]
		}
	}
}

// before puts what is inserted at a place in front of what begins there.
func before(a, b edit) bool {
	if a.from != b.from {
		return a.from < b.from
	}
	return a.to < b.to
}

func pastComma(src []byte, i int) int {
	for k := i; k < len(src); k++ {
		switch src[k] {
		case ' ', '\t', '\r', '\n':
		case ',':
			return k + 1
		default:
			return i
		}
	}
	return i
}

// removeInner removes the only member to go of an object inside src.
func (e *edits) removeInner(src []byte, m member) {
	at := span{m.key, m.val.to}
	if m.ord == 0 {
		at.to = pastComma(src, at.to)
	} else {
		at.from = bytes.LastIndexByte(src[:at.from], ',')
	}
	e.replace(at, nil)
}
