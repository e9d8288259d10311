-- Take a share of the lock, or join its queue; a waiter also calls this again to learn whether it was granted.
-- KEYS: lock, queue, gone, counter
-- ARGV: those of take.lua; how many may share the lock; 1 if the share may have been granted before
-- Answers: as take.lua does.
-- needs: clock, mint, alive, cover, hand_over, settle, join
local lock, queue, gone, counter = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local holder, shares = ARGV[1], KEYS[1] .. '\31shares'
if redis.call('SISMEMBER', gone, holder) == 1 then return -2 end
local value = redis.call('GET', lock)
if not value or value == ':0' then value = settle(lock, queue, counter, value) end
local now = clock()
if value == ':0' then
    if ARGV[7] == '1' then
        local found = redis.call('ZRANGE', shares, 0, -1, 'WITHSCORES')
        for index = 1, #found, 2 do
            local owner, token = string.match(found[index], '^(.*):(%d+)$')
            if owner == holder then return {token, math.floor((found[index + 1] - now) / 1000)} end
        end
    end
    if redis.call('EXISTS', queue) == 1 or redis.call('ZCARD', shares) >= tonumber(ARGV[6]) then
        return join(lock, queue, '', ARGV[3], ARGV[4], ARGV[5])
    end
elseif value then
    return join(lock, queue, string.match(value, '^(.*):%d+$'), ARGV[3], ARGV[4], ARGV[5])
else
    redis.call('DEL', shares)
    redis.call('ZREM', queue, ARGV[4]) -- hand_over could publish to no waiter, but this one gets the lock now
end
local token = mint(counter, now)
redis.call('ZADD', shares, now + ARGV[2] * 1000, holder .. ':' .. token)
cover(lock, now)
return token
