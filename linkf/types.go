package linkf

import "fmt"

// The types of frames. Numbers are never given a second meaning.
const (
	typeHello         Type = 0x0001 // head to node
	typeHelloAck      Type = 0x0002 // node to head
	typeReconcile     Type = 0x0003 // head to node
	typeReconcileAck  Type = 0x0004 // node to head
	typeAssign        Type = 0x0005 // head to node
	typeAppend        Type = 0x0006 // head to node
	typeGenerate      Type = 0x0007 // head to node
	typeCancel        Type = 0x0008 // head to node
	typePark          Type = 0x0009 // head to node
	typeRevoke        Type = 0x000A // head to node
	typeRenew         Type = 0x000B // node to head
	typeGrant         Type = 0x000C // head to node
	typeGone          Type = 0x000D // node to head
	typeEvents        Type = 0x000E // node to head
	typeAck           Type = 0x000F // head to node
	typeCredit        Type = 0x0010 // head to node
	typeStatus        Type = 0x0011 // node to head
	typeCall          Type = 0x0012 // head to node
	typeCallCancel    Type = 0x0013 // head to node
	typeReply         Type = 0x0014 // node to head
	typeSlots         Type = 0x0015 // node to head
	typeTransferBegin Type = 0x0020 // both ways, as the next four
	typeTransferChunk Type = 0x0021
	typeTransferEnd   Type = 0x0022
	typeTransferAbort Type = 0x0023
	typeTransferAck   Type = 0x0024
	typeClose         Type = 0x0030 // both ways
	typeKeepalive     Type = 0x0001 | Droppable
	typeNotice        Type = 0x0002 | Droppable // head to node
)

var typeNames = map[Type]string{
	typeHello: "hello", typeHelloAck: "hello ack", typeReconcile: "reconcile", typeReconcileAck: "reconcile ack",
	typeAssign: "assign", typeAppend: "append", typeGenerate: "generate", typeCancel: "cancel", typePark: "park",
	typeRevoke: "revoke", typeRenew: "renew", typeGrant: "grant", typeGone: "gone", typeEvents: "events",
	typeAck: "ack", typeCredit: "credit", typeStatus: "status", typeCall: "call", typeCallCancel: "call cancel",
	typeReply: "reply", typeSlots: "slots", typeTransferBegin: "transfer begin", typeTransferChunk: "transfer chunk",
	typeTransferEnd: "transfer end", typeTransferAbort: "transfer abort", typeTransferAck: "transfer ack",
	typeClose: "close", typeKeepalive: "keepalive", typeNotice: "notice",
}

// String returns the type's name in docs/linkf.md.
func (t Type) String() string {
	if s, ok := typeNames[t]; ok {
		return s
	}
	return fmt.Sprintf("unknown type %#04x", uint16(t))
}
