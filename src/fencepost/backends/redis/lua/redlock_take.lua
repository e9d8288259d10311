-- Take a lock on one node, for one attempt; it has no token yet.
-- KEYS: lock, gone (of this holder), counter
-- ARGV: holder, number of the attempt, ttl in ms
-- Answers: {last token, time in us}, if granted; ms left or -1, if another holds it; -2, if this attempt was given up.
-- needs: clock
local holder, attempt = ARGV[1], ARGV[2]
local own = holder .. ':-' .. attempt
if redis.call('EXISTS', KEYS[1], KEYS[2]) > 0 then
    if tonumber(attempt) <= tonumber(redis.call('GET', KEYS[2]) or 0) then return -2 end
    local value = redis.call('GET', KEYS[1])
    if value then
        -- This attempt replaces an earlier one of the same holder, which may have been cut off, but never a later one.
        local owner, other = string.match(value, '^(.*):%-(%d+)$')
        if owner ~= holder or tonumber(other) > tonumber(attempt) then return redis.call('PTTL', KEYS[1]) end
    end
end
redis.call('SET', KEYS[1], own, 'PX', ARGV[3])
return {redis.call('GET', KEYS[3]) or '0', clock()}
