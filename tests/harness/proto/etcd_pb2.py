"""Generated from tests/harness/proto/etcd.proto; do not edit.

protoc's own Python output would ask for a runtime at least as new as itself; the bare descriptor does not. The pool is
our own, so that no other client of etcd in the process can be in the way.
"""

from google.protobuf import descriptor_pool, message_factory

_pool = descriptor_pool.DescriptorPool()
_pool.AddSerializedFile(
    b'\n\x1etests/harness/proto/etcd.proto\x12\x0efencepost.etcd"\xae\x01\n\x08KeyValue\x12\x10\n\x03key\x18\x01 '
    b"\x01(\x0cR\x03key\x12'\n\x0fcreate_revision\x18\x02 \x01(\x03R\x0ecreateRevision\x12!\n\x0cmod_revision\x18"
    b'\x03 \x01(\x03R\x0bmodRevision\x12\x18\n\x07version\x18\x04 \x01(\x03R\x07version\x12\x14\n\x05value\x18\x05 \x01(\x0cR'
    b'\x05value\x12\x14\n\x05lease\x18\x06 \x01(\x03R\x05lease"\x85\x01\n\x0eResponseHeader\x12\x1d\n\ncluster_id'
    b'\x18\x01 \x01(\x04R\tclusterId\x12\x1b\n\tmember_id\x18\x02 \x01(\x04R\x08memberId\x12\x1a\n\x08revision\x18\x03'
    b' \x01(\x03R\x08revision\x12\x1b\n\traft_term\x18\x04 \x01(\x04R\x08raftTerm"\xb4\x04\n\x0cRangeRequest\x12'
    b'\x10\n\x03key\x18\x01 \x01(\x0cR\x03key\x12\x1b\n\trange_end\x18\x02 \x01(\x0cR\x08rangeEnd\x12\x14\n\x05limit\x18\x03 \x01('
    b'\x03R\x05limit\x12\x1a\n\x08revision\x18\x04 \x01(\x03R\x08revision\x12E\n\nsort_order\x18\x05 \x01(\x0e2&.fe'
    b"ncepost.etcd.RangeRequest.SortOrderR\tsortOrder\x12H\n\x0bsort_target\x18\x06 \x01(\x0e2'.fencepost.etcd.Rang"
    b'eRequest.SortTargetR\nsortTarget\x12"\n\x0cserializable\x18\x07 \x01(\x08R\x0cserializable\x12\x1b\n\tkeys_on'
    b'ly\x18\x08 \x01(\x08R\x08keysOnly\x12\x1d\n\ncount_only\x18\t \x01(\x08R\tcountOnly\x12.\n\x13min_create_revi'
    b'sion\x18\x0c \x01(\x03R\x11minCreateRevision\x12.\n\x13max_create_revision\x18\r \x01(\x03R\x11maxCreateRevis'
    b'ion".\n\tSortOrder\x12\x08\n\x04NONE\x10\x00\x12\n\n\x06ASCEND\x10\x01\x12\x0b\n\x07DESCEND\x10\x02"B\n\nSortT'
    b'arget\x12\x07\n\x03KEY\x10\x00\x12\x0b\n\x07VERSION\x10\x01\x12\n\n\x06CREATE\x10\x02\x12\x07\n\x03MOD\x10\x03\x12\t\n\x05VALUE\x10\x04"'
    b'\x9d\x01\n\rRangeResponse\x126\n\x06header\x18\x01 \x01(\x0b2\x1e.fencepost.etcd.ResponseHeaderR\x06header'
    b'\x12*\n\x03kvs\x18\x02 \x03(\x0b2\x18.fencepost.etcd.KeyValueR\x03kvs\x12\x12\n\x04more\x18\x03 \x01(\x08R\x04'
    b'more\x12\x14\n\x05count\x18\x04 \x01(\x03R\x05count"J\n\nPutRequest\x12\x10\n\x03key\x18\x01 \x01(\x0cR\x03key\x12\x14'
    b'\n\x05value\x18\x02 \x01(\x0cR\x05value\x12\x14\n\x05lease\x18\x03 \x01(\x03R\x05lease"E\n\x0bPutResponse\x126\n'
    b'\x06header\x18\x01 \x01(\x0b2\x1e.fencepost.etcd.ResponseHeaderR\x06header"C\n\x12DeleteRangeRequest\x12\x10'
    b'\n\x03key\x18\x01 \x01(\x0cR\x03key\x12\x1b\n\trange_end\x18\x02 \x01(\x0cR\x08rangeEnd"g\n\x13DeleteRangeRes'
    b'ponse\x126\n\x06header\x18\x01 \x01(\x0b2\x1e.fencepost.etcd.ResponseHeaderR\x06header\x12\x18\n\x07deleted'
    b'\x18\x02 \x01(\x03R\x07deleted"\xf2\x01\n\tRequestOp\x12C\n\rrequest_range\x18\x01 \x01(\x0b2\x1c.fencepost.e'
    b'tcd.RangeRequestH\x00R\x0crequestRange\x12=\n\x0brequest_put\x18\x02 \x01(\x0b2\x1a.fencepost.etcd.PutRequest'
    b'H\x00R\nrequestPut\x12V\n\x14request_delete_range\x18\x03 \x01(\x0b2".fencepost.etcd.DeleteRangeRequestH\x00R'
    b'\x12requestDeleteRangeB\t\n\x07request"\xfd\x01\n\nResponseOp\x12F\n\x0eresponse_range\x18\x01 \x01(\x0b2\x1d'
    b'.fencepost.etcd.RangeResponseH\x00R\rresponseRange\x12@\n\x0cresponse_put\x18\x02 \x01(\x0b2\x1b.fencepost.et'
    b'cd.PutResponseH\x00R\x0bresponsePut\x12Y\n\x15response_delete_range\x18\x03 \x01(\x0b2#.fencepost.etcd.Delete'
    b'RangeResponseH\x00R\x13responseDeleteRangeB\n\n\x08response"\xed\x03\n\x07Compare\x12=\n\x06result\x18\x01 '
    b'\x01(\x0e2%.fencepost.etcd.Compare.CompareResultR\x06result\x12=\n\x06target\x18\x02 \x01(\x0e2%.fencepost.et'
    b'cd.Compare.CompareTargetR\x06target\x12\x10\n\x03key\x18\x03 \x01(\x0cR\x03key\x12\x1a\n\x07version\x18\x04 '
    b'\x01(\x03H\x00R\x07version\x12)\n\x0fcreate_revision\x18\x05 \x01(\x03H\x00R\x0ecreateRevision\x12#\n\x0cmod_'
    b'revision\x18\x06 \x01(\x03H\x00R\x0bmodRevision\x12\x16\n\x05value\x18\x07 \x01(\x0cH\x00R\x05value\x12\x16\n\x05lea'
    b'se\x18\x08 \x01(\x03H\x00R\x05lease\x12\x1b\n\trange_end\x18@ \x01(\x0cR\x08rangeEnd"@\n\rCompareResult\x12\t'
    b'\n\x05EQUAL\x10\x00\x12\x0b\n\x07GREATER\x10\x01\x12\x08\n\x04LESS\x10\x02\x12\r\n\tNOT_EQUAL\x10\x03"G\n\rCompareTa'
    b'rget\x12\x0b\n\x07VERSION\x10\x00\x12\n\n\x06CREATE\x10\x01\x12\x07\n\x03MOD\x10\x02\x12\t\n\x05VALUE\x10\x03\x12\t\n\x05LEASE\x10\x04'
    b'B\x0e\n\x0ctarget_union"\xa9\x01\n\nTxnRequest\x121\n\x07compare\x18\x01 \x03(\x0b2\x17.fencepost.etcd.Compar'
    b'eR\x07compare\x123\n\x07success\x18\x02 \x03(\x0b2\x19.fencepost.etcd.RequestOpR\x07success\x123\n\x07failure'
    b'\x18\x03 \x03(\x0b2\x19.fencepost.etcd.RequestOpR\x07failure"\x9d\x01\n\x0bTxnResponse\x126\n\x06header\x18'
    b'\x01 \x01(\x0b2\x1e.fencepost.etcd.ResponseHeaderR\x06header\x12\x1c\n\tsucceeded\x18\x02 \x01(\x08R\tsucceed'
    b'ed\x128\n\tresponses\x18\x03 \x03(\x0b2\x1a.fencepost.etcd.ResponseOpR\tresponses"K\n\x0cInnerRequest\x12;\n'
    b'\x0brequest_txn\x18\x04 \x01(\x0b2\x1a.fencepost.etcd.TxnRequestR\nrequestTxn"O\n\rInnerResponse\x12>\n\x0cre'
    b'sponse_txn\x18\x04 \x01(\x0b2\x1b.fencepost.etcd.TxnResponseR\x0bresponseTxn"G\n\rNestedRequest\x126\n\x07suc'
    b'cess\x18\x02 \x03(\x0b2\x1c.fencepost.etcd.InnerRequestR\x07success"\x85\x01\n\x0eNestedResponse\x126\n\x06he'
    b'ader\x18\x01 \x01(\x0b2\x1e.fencepost.etcd.ResponseHeaderR\x06header\x12;\n\tresponses\x18\x03 \x03(\x0b2\x1d'
    b'.fencepost.etcd.InnerResponseR\tresponses"5\n\x11LeaseGrantRequest\x12\x10\n\x03TTL\x18\x01 \x01(\x03R\x03TTL'
    b'\x12\x0e\n\x02ID\x18\x02 \x01(\x03R\x02ID"\x84\x01\n\x12LeaseGrantResponse\x126\n\x06header\x18\x01 \x01(\x0b2\x1e.fe'
    b'ncepost.etcd.ResponseHeaderR\x06header\x12\x0e\n\x02ID\x18\x02 \x01(\x03R\x02ID\x12\x10\n\x03TTL\x18\x03 \x01'
    b'(\x03R\x03TTL\x12\x14\n\x05error\x18\x04 \x01(\tR\x05error"$\n\x12LeaseRevokeRequest\x12\x0e\n\x02ID\x18\x01 '
    b'\x01(\x03R\x02ID"M\n\x13LeaseRevokeResponse\x126\n\x06header\x18\x01 \x01(\x0b2\x1e.fencepost.etcd.ResponseHe'
    b'aderR\x06header"\'\n\x15LeaseKeepAliveRequest\x12\x0e\n\x02ID\x18\x01 \x01(\x03R\x02ID"r\n\x16LeaseKeepAliveR'
    b'esponse\x126\n\x06header\x18\x01 \x01(\x0b2\x1e.fencepost.etcd.ResponseHeaderR\x06header\x12\x0e\n\x02ID\x18'
    b'\x02 \x01(\x03R\x02ID\x12\x10\n\x03TTL\x18\x03 \x01(\x03R\x03TTL"<\n\x16LeaseTimeToLiveRequest\x12\x0e\n\x02ID\x18'
    b'\x01 \x01(\x03R\x02ID\x12\x12\n\x04keys\x18\x02 \x01(\x08R\x04keys"\xa7\x01\n\x17LeaseTimeToLiveResponse\x126\n'
    b'\x06header\x18\x01 \x01(\x0b2\x1e.fencepost.etcd.ResponseHeaderR\x06header\x12\x0e\n\x02ID\x18\x02 \x01(\x03R'
    b'\x02ID\x12\x10\n\x03TTL\x18\x03 \x01(\x03R\x03TTL\x12\x1e\n\ngrantedTTL\x18\x04 \x01(\x03R\ngrantedTTL\x12\x12\n\x04key'
    b's\x18\x05 \x03(\x0cR\x04keys"\x88\x01\n\x05Event\x123\n\x04type\x18\x01 \x01(\x0e2\x1f.fencepost.etcd.Event.E'
    b'ventTypeR\x04type\x12(\n\x02kv\x18\x02 \x01(\x0b2\x18.fencepost.etcd.KeyValueR\x02kv" \n\tEventType\x12\x07\n'
    b'\x03PUT\x10\x00\x12\n\n\x06DELETE\x10\x01"\xf5\x01\n\x12WatchCreateRequest\x12\x10\n\x03key\x18\x01 \x01(\x0cR\x03key\x12'
    b'\x1b\n\trange_end\x18\x02 \x01(\x0cR\x08rangeEnd\x12%\n\x0estart_revision\x18\x03 \x01(\x03R\rstartRevision'
    b'\x12G\n\x07filters\x18\x05 \x03(\x0e2-.fencepost.etcd.WatchCreateRequest.FilterTypeR\x07filters\x12\x19\n\x08'
    b'watch_id\x18\x07 \x01(\x03R\x07watchId"%\n\nFilterType\x12\t\n\x05NOPUT\x10\x00\x12\x0c\n\x08NODELETE\x10\x01'
    b'"/\n\x12WatchCancelRequest\x12\x19\n\x08watch_id\x18\x01 \x01(\x03R\x07watchId"\xb9\x01\n\x0cWatchRequest\x12'
    b'K\n\x0ecreate_request\x18\x01 \x01(\x0b2".fencepost.etcd.WatchCreateRequestH\x00R\rcreateRequest\x12K\n\x0eca'
    b'ncel_request\x18\x02 \x01(\x0b2".fencepost.etcd.WatchCancelRequestH\x00R\rcancelRequestB\x0f\n\rrequest_union'
    b'"\x97\x02\n\rWatchResponse\x126\n\x06header\x18\x01 \x01(\x0b2\x1e.fencepost.etcd.ResponseHeaderR\x06header'
    b'\x12\x19\n\x08watch_id\x18\x02 \x01(\x03R\x07watchId\x12\x18\n\x07created\x18\x03 \x01(\x08R\x07created\x12\x1a\n\x08can'
    b'celed\x18\x04 \x01(\x08R\x08canceled\x12)\n\x10compact_revision\x18\x05 \x01(\x03R\x0fcompactRevision\x12#\n'
    b'\rcancel_reason\x18\x06 \x01(\tR\x0ccancelReason\x12-\n\x06events\x18\x0b \x03(\x0b2\x15.fencepost.etcd.Event'
    b'R\x06events"E\n\x13AuthenticateRequest\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12\x1a\n\x08password\x18'
    b'\x02 \x01(\tR\x08password"d\n\x14AuthenticateResponse\x126\n\x06header\x18\x01 \x01(\x0b2\x1e.fencepost.etcd.'
    b'ResponseHeaderR\x06header\x12\x14\n\x05token\x18\x02 \x01(\tR\x05token"\x86\x01\n\x06Member\x12\x0e\n\x02ID'
    b'\x18\x01 \x01(\x04R\x02ID\x12\x12\n\x04name\x18\x02 \x01(\tR\x04name\x12\x1a\n\x08peerURLs\x18\x03 \x03(\tR\x08peerURLs\x12\x1e'
    b'\n\nclientURLs\x18\x04 \x03(\tR\nclientURLs\x12\x1c\n\tisLearner\x18\x05 \x01(\x08R\tisLearner"7\n\x11MemberL'
    b'istRequest\x12"\n\x0clinearizable\x18\x01 \x01(\x08R\x0clinearizable"~\n\x12MemberListResponse\x126\n\x06head'
    b'er\x18\x01 \x01(\x0b2\x1e.fencepost.etcd.ResponseHeaderR\x06header\x120\n\x07members\x18\x02 \x03(\x0b2\x16.f'
    b'encepost.etcd.MemberR\x07members"\x0f\n\rStatusRequest"\xd0\x02\n\x0eStatusResponse\x126\n\x06header\x18\x01 '
    b'\x01(\x0b2\x1e.fencepost.etcd.ResponseHeaderR\x06header\x12\x18\n\x07version\x18\x02 \x01(\tR\x07version\x12'
    b'\x16\n\x06dbSize\x18\x03 \x01(\x03R\x06dbSize\x12\x16\n\x06leader\x18\x04 \x01(\x04R\x06leader\x12\x1c\n\traftIndex'
    b'\x18\x05 \x01(\x04R\traftIndex\x12\x1a\n\x08raftTerm\x18\x06 \x01(\x04R\x08raftTerm\x12*\n\x10raftAppliedInde'
    b'x\x18\x07 \x01(\x04R\x10raftAppliedIndex\x12\x16\n\x06errors\x18\x08 \x03(\tR\x06errors\x12 \n\x0bdbSizeInUse'
    b'\x18\t \x01(\x03R\x0bdbSizeInUse\x12\x1c\n\tisLearner\x18\n \x01(\x08R\tisLearnerb\x06proto3'
)
globals().update(
    {
        name: message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"fencepost.etcd.{name}"))
        for name in 'KeyValue ResponseHeader RangeRequest RangeResponse PutRequest PutResponse DeleteRangeRequest DeleteRangeResponse RequestOp ResponseOp Compare TxnRequest TxnResponse InnerRequest InnerResponse NestedRequest NestedResponse LeaseGrantRequest LeaseGrantResponse LeaseRevokeRequest LeaseRevokeResponse LeaseKeepAliveRequest LeaseKeepAliveResponse LeaseTimeToLiveRequest LeaseTimeToLiveResponse Event WatchCreateRequest WatchCancelRequest WatchRequest WatchResponse AuthenticateRequest AuthenticateResponse Member MemberListRequest MemberListResponse StatusRequest StatusResponse'.split()
    }
)
