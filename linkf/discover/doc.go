// Package discover finds heads on the local network, by DNS-SD (RFC 6763) over multicast
// DNS (RFC 6762): a head announces _slotfleet._tcp, and nodes that look for one hear of
// it. What is found is an address to dial and nothing more; who is there, the handshake
// of linkf shows.
//
// The pure part takes packets and times and returns packets:
//
//	packet ─► announcer ─► answers, announcements, the goodbye     (a head)
//	packet ─► finder ────► questions, the heads that are there     (a node)
//
// [Announce] and [Find] run them on port 5353 of each interface that has multicast. An
// interface that comes later is taken, too.
//
// What is believed: packets whose source is on the network of the interface that they came
// by, from port 5353, and in them addresses on that network. What a sender can make us
// keep or send is bounded: maxHeads heads, maxAddresses addresses each, one multicast a
// second on each interface and unicastRate answers a second in all.
//
// What it leaves out of the RFCs: names are made from the head's random identity and not
// probed for; a question is not accompanied by the answers that are known; no NSEC
// records. Routers pass none of this on, so that a head is found on its own networks only.
package discover
