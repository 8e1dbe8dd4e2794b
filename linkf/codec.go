package linkf

import (
	"fmt"

	"github.com/fxamacker/cbor/v2"
)

// What a peer may make the decoder allocate. The largest amplification is a list of
// structures that are empty on the wire: maxElements of them.
const (
	maxDepth    = 6
	maxElements = 4096
	maxPairs    = 64
)

var (
	encMode = must(cbor.EncOptions{Sort: cbor.SortNone, IndefLength: cbor.IndefLengthForbidden}.EncMode())
	decMode = must(cbor.DecOptions{
		DupMapKey:        cbor.DupMapKeyEnforcedAPF,
		IndefLength:      cbor.IndefLengthForbidden,
		TagsMd:           cbor.TagsForbidden,
		UTF8:             cbor.UTF8RejectInvalid,
		MaxNestedLevels:  maxDepth,
		MaxArrayElements: maxElements,
		MaxMapPairs:      maxPairs,
	}.DecMode())
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err) // options are constants
	}
	return v
}

// decode reads a payload into a message.
func decode[T any](f frame) (m T, err error) {
	if err := decMode.Unmarshal(f.payload, &m); err != nil {
		return m, fmt.Errorf("%s: %w", f.typ, err)
	}
	return m, nil
}
