-- Lower a mark by hand, unless it is no longer what the caller saw.
-- KEYS: the mark
-- ARGV: the mark's new token, the token that the caller saw
-- Returns whether the mark was lowered.
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'seq', '1', 'holder', '', 'digest', '')
return 1
